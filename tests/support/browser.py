"""A real Chromium without a window, by its DevTools protocol over a pipe: messages are JSON, each ended by a zero byte."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from types import TracebackType
from typing import Any

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def chromium() -> str | None:
    """Where Chromium is; None if it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """A browser with one page, and after `begin_anew` with another one that shares nothing with it.

    Attributes:
        requests: addresses that the page has asked for.
        complaints: errors and warnings of its console, exceptions, and what its security policy refused.
    """

    def __init__(self, program: str) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        command = 'exec "$0" "$@" 3<&"$FROM_US" 4>&"$TO_US"'
        self._process = subprocess.Popen(
            ["bash", "-c", command, program, *_FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "FROM_US": str(to_read), "TO_US": str(to_write), "HOME": self._folder.name},
        )
        os.close(to_read)
        os.close(to_write)
        self._left, self._number, self._session, self._profile = b"", 0, "", ""
        self.begin_anew()

    def begin_anew(self) -> None:
        """Go on with an empty page of another profile: nothing is stored, asked for or complained of."""
        self._session = ""
        if self._profile:
            self._ask("Target.disposeBrowserContext", browserContextId=self._profile)
        self._profile = self._ask("Target.createBrowserContext")["browserContextId"]
        page = self._ask("Target.createTarget", url="about:blank", browserContextId=self._profile)["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")
        self.requests.clear()
        self.complaints.clear()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._folder.cleanup()

    def look(self, *, width: int = 1100, is_dark: bool = False) -> None:
        """The width of the window in CSS pixels, and the colours that its user prefers."""
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1.0, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        """Go to a page, and wait until its scripts have run once."""
        self._ask("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete' && Number(document.body.dataset.looks ?? 0) >= 1")

    def value(self, expression: str) -> Any:
        """Of an expression, in the page; a promise is waited for."""
        found = self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Until an expression is true in the page; asked once a frame."""
        turn = f"const turn = () => ({expression}) ? done() : setTimeout(turn, 15); turn();"
        while True:
            try:
                self.value(f"new Promise((done) => {{ {turn} }})")
                return
            except ConnectionError:
                raise
            except RuntimeError as error:  # the page went away under the question: ask the next one
                if "context" not in str(error) and "navigat" not in str(error):
                    raise

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer.get("method", ""), answer.get("params", {}))

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            read = os.read(self._read, 1 << 20)
            if not read:
                raise ConnectionError(f"Chromium has ended (exit {self._process.wait()})")
            self._left += read
        raw, _, self._left = self._left.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        return message

    def _note(self, event: str, about: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(str(about["exceptionDetails"]))
        elif event == "Log.entryAdded":
            self.complaints.append(about["entry"]["text"])
        elif event == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(about["args"]))
