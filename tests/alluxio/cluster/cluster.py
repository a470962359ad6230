"""The cluster as a whole: started, waited for, broken on purpose, mended, stopped."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from tranlogs.base.errors import StoreUnavailable

from .process import Process, command, write_log_settings
from .settings import ROLES, Settings, memory_of, role_of

_READY_SECONDS = 300.0  # a dozen on a quiet machine of two cores
_POLL_SECONDS = 0.1


class Cluster:
    """Master, job master, workers with a job worker each, and proxy. Processes are named "worker-0" and so on.

    Whoever starts or restarts a process must be a thread that lives on: processes die with it.
    """

    def __init__(self, home: Path, settings: Settings | None = None, under_store: Path | None = None) -> None:
        self.home = home.resolve()
        self.settings = settings or Settings()
        self.under_store = (under_store or home / "under-store").resolve()
        self._processes: dict[str, Process] = {}
        self._told: dict[str, dict[str, object]] = {}  # properties of a process that differ from its usual ones

    @property
    def names(self) -> list[str]:
        """All processes, in the order in which they are started."""
        masters, roles = ("master", "job-master"), ("worker", "job-worker")
        if not self.settings.persists:
            masters, roles = masters[:1], roles[:1]
        return [*masters, *(f"{role}-{number}" for number in range(self.settings.workers) for role in roles), "proxy"]

    def url(self, path: str = "/", **query: object) -> str:
        """The address of a store on it."""
        asked = "&".join(f"{key}={value}" for key, value in query.items())
        return f"alluxio://127.0.0.1:{self.settings.ports['proxy.web']}{path}" + (f"?{asked}" if asked else "")

    # -- life

    def start(self) -> Cluster:
        """Start what does not run, and wait until all of it serves.

        Raises:
            Missing: there is no JDK or no Maven, or the jars cannot be got.
        """
        if not (self.home / "conf").exists():
            self._prepare()
        for name in self.names:
            self._run(name)
            if name == "master":  # the others would wait for it longer than this takes
                self.wait(lambda: self._info("master.web", "master")[0] in (200, 500), "the master serves", name)
        return self.wait_ready()

    def wait_ready(self) -> Cluster:
        """Wait until master and job master know all workers, and the proxy serves."""
        workers = self.settings.workers
        self.wait(lambda: self._workers("master.web", "master") == workers, "the master knows all workers", "master")
        if self.settings.persists:
            what = "the job master knows all workers"
            self.wait(lambda: self._workers("job.master.web", "job_master") == workers, what, "job-master")
        self.wait(self._proxy_serves, "the proxy serves", "proxy")
        return self

    def abandon(self) -> None:
        """SIGKILL for all processes."""
        for process in self._processes.values():
            process.send(signal.SIGKILL)
        for process in self._processes.values():
            process.kill()
        self._processes.clear()

    def __enter__(self) -> Cluster:
        try:
            return self.start()
        except BaseException:
            self.abandon()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.abandon()

    # -- faults

    def kill(self, *names: str) -> None:
        """SIGKILL processes. A worker alone keeps its blocks: they lie in a folder."""
        for name in names:
            self._processes.pop(name).kill()

    def restart(self, name: str, **told: object) -> None:
        """Start a process again, after a kill where it runs. `told`: properties, with "_" for "." (none: its usual ones)."""
        if name in self._processes:
            self.kill(name)
        self._told[name] = {key.replace("_", "."): value for key, value in told.items()}
        self._run(name)

    def lose(self, number: int) -> None:
        """A machine dies: worker, job worker, and the blocks in memory."""
        self.kill(*(name for name in (f"worker-{number}", f"job-worker-{number}") if name in self._processes))
        shutil.rmtree(memory_of(self.home, number))

    def mend(self) -> None:
        """Restart whatever is dead or was told something unusual, and wait until all serves."""
        for name, told in list(self._told.items()):
            if told:
                self.restart(name)
        self.start()

    # -- looking

    def workers(self) -> int:
        """Workers that the master takes for alive."""
        return self._workers("master.web", "master")

    def ask(self, method: str, port: str, path: str) -> tuple[int, bytes]:
        """Status and body of the answer of a web server (a port by its name in STANDARD_PORTS)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.settings.ports[port], timeout=10)
        try:
            # A POST without a body must say no type of content.
            connection.request(method, path, headers={"Content-Length": "0"} if method == "POST" else {})
            answer = connection.getresponse()
            return answer.status, answer.read().strip()
        finally:
            connection.close()

    def wait(self, is_so: Callable[[], bool], what: str, name: str | None = None) -> None:
        """Wait for a condition; `name` is the process whose death or last words explain why it never comes."""
        end = time.monotonic() + _READY_SECONDS
        while True:
            if name is not None and not self._processes[name].is_alive:
                raise AssertionError(f"{name} died:\n{self._processes[name].last_words()}")
            try:
                if is_so():
                    return
            except (OSError, ValueError, http.client.HTTPException, StoreUnavailable):
                pass  # not up yet
            if time.monotonic() > end:
                said = f":\n{self._processes[name].last_words()}" if name is not None else ""
                raise AssertionError(f"{what}: not within {_READY_SECONDS:.0f} s{said}")
            time.sleep(_POLL_SECONDS)

    # -- inside

    def _prepare(self) -> None:
        for folder in ("conf", "logs/user", "journal", "lib", "extensions"):
            (self.home / folder).mkdir(parents=True)
        self.under_store.mkdir(parents=True, exist_ok=True)
        site = self.settings.properties(self.home, self.under_store)
        (self.home / "conf/alluxio-site.properties").write_text("".join(f"{key}={value}\n" for key, value in site.items()))
        write_log_settings(self.home)
        done = subprocess.run(
            command(ROLES["format"], self.home, {}, ["master"]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.home,
            check=False,
        )
        assert done.returncode == 0, f"the journal could not be formatted:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"

    def _run(self, name: str) -> None:
        running = self._processes.get(name)
        if running is not None and running.is_alive:
            return
        role, number = role_of(name)
        if number is not None:
            memory_of(self.home, number).mkdir(exist_ok=True)
        told = self.settings.of_process(name, self.home) | self._told.get(name, {})
        self._processes[name] = Process(name, role, self.home, told, is_impatient=self.settings.is_impatient)

    def _workers(self, port: str, master: str) -> int:
        status, body = self._info(port, master)
        if status != 200:
            raise ValueError(f"status {status}")
        found: list[Any] = json.loads(body)["workers"]
        return len(found)

    def _proxy_serves(self) -> bool:
        return self.ask("POST", "proxy.web", "/api/v1/paths///exists")[1] == b"true"

    def _info(self, port: str, master: str) -> tuple[int, bytes]:
        """200 from a master that serves, 500 from one in safe mode."""
        return self.ask("GET", port, f"/api/v1/{master}/info")
