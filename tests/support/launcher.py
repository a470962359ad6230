"""A process that starts groups of others, one group after the other (torchrun.py), as the tests see it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
_SECONDS_MAX = 300.0  # for a group to end


def environment() -> dict[str, str]:
    """For processes that import from this checkout, and reach for nothing outside."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "integrations", ROOT / "monitor"))),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


class Launcher:
    """A process that starts groups of others. All of them are one process group.

    Args:
        folder: for what they print.
        modules: imported once, before processes are forked.
        variables: of their environment.
    """

    def __init__(self, folder: Path, *modules: str, **variables: str) -> None:
        self.folder = folder
        self._modules, self._variables = modules, variables
        self._errors = open(folder / "errors", "w+")  # noqa: SIM115
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.torchrun", *self._modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env=environment() | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} | self._variables,
            start_new_session=True,
        )

    def ask(self, job: dict[str, Any]) -> str:
        """Run a job; says what went wrong."""
        self._errors.truncate(0)
        self._errors.seek(0)
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        print(json.dumps(job), file=stdin, flush=True)
        ready, _, _ = select.select([stdout], [], [], _SECONDS_MAX)
        if not ready:  # it would hang for the tests behind this one, too
            self._end()
            self._process = self._start()
            pytest.fail(f"the group did not end within {_SECONDS_MAX} s\n{self.said()[-6000:]}")
        line = stdout.readline()
        assert line, f"the launcher ended with {self._process.wait()}\n{self.said()[-6000:]}"
        return str(json.loads(line)["failure"])

    def said(self) -> str:
        """What the processes of the last job printed."""
        return (self.folder / "errors").read_text(errors="replace").replace("\0", "")

    def close(self) -> None:
        """End all of them."""
        self._end()
        self._errors.close()

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
