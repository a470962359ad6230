"""Servers that fork a process for each job, so that hundreds of processes can be killed in a few seconds.

A job is a line of JSON on the server's stdin. On stdout come lines of words: `pid N`, what the forked process says, `done` once
it has ended, and after the line `REAP` on stdin `exit STATUS`. The process is reaped between these two: whoever still wants to
kill it until then hits nobody else. Lines before `REAP` were for the process, which ended before it read them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.huge_pages import collapse_memory

Say = Callable[..., None]
REAP: dict[str, Any] = {"reap": True}


def say(*words: object) -> None:
    """Write a line for the test, all at once."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def _print_traceback() -> None:
    traceback.print_exc()
    sys.stderr.flush()


def serve(
    work: Callable[[dict[str, Any]], None],
    *,
    reaps: bool = False,
    say: Say = say,
    tell_error: Callable[[], None] = _print_traceback,
) -> None:
    """Fork for each job, until stdin ends.

    Args:
        work: does the job in the forked process, which then ends with 0, or with 1 after an exception.
        reaps: reap each process at once, without `done`: for tests that look whether it still exists.
        say: writes a line for the test.
        tell_error: tells the test of the exception that is being handled.
    """
    collapse_memory()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                say("pid", os.getpid())  # not by the server, whose words may come behind those of its child
                work(json.loads(line))
                code = 0
            except BaseException:
                tell_error()
            finally:
                os._exit(code)
        if not reaps:
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
            say("done")
            while (said := sys.stdin.readline()) and json.loads(said) != REAP:
                pass
        say("exit", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


class ForkServer:
    """A server, as the test sees it.

    Args:
        script: the program that calls `serve`.
        stdout: where its stdout goes, if not into a pipe.
        environment: variables besides those of this process.
    """

    def __init__(self, script: Path, *, stdout: int | Any = subprocess.PIPE, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=stdout,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment},
        )

    def tell(self, content: dict[str, Any]) -> None:
        """Send a job, or a line that is waited for."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(content).encode() + b"\n")
        self._process.stdin.flush()

    def lines(self) -> Iterator[bytes]:
        """Yield what is said, line by line."""
        assert self._process.stdout is not None
        return iter(self._process.stdout.readline, b"")

    def hear(self) -> tuple[str, str]:
        """Return the first word of the next line, and the rest of it."""
        for line in self.lines():
            word, _, rest = line.decode().rstrip("\n").partition(" ")
            return word, rest
        raise AssertionError(f"the server has ended with {self._process.wait()}")

    def start(self, job: dict[str, Any]) -> int:
        """Send a job; return the id of the process that does it."""
        self.tell(job)
        return int(self.wait_for("pid"))

    def wait_for(self, word: str) -> str:
        """Pass over what is said up to a line that begins with a word; return the rest of that line."""
        while True:
            found, rest = self.hear()
            if found == word:
                return rest

    def reap(self) -> int:
        """Return how the process ended that was said to be done: its exit status, or the negative of a signal."""
        self.tell(REAP)
        return int(self.wait_for("exit"))

    def kill(self, pid: int) -> int:
        """Kill the process of the job by SIGKILL, unless it has ended; return how it ended."""
        os.kill(pid, signal.SIGKILL)  # it is not reaped yet
        return self.reap()

    def close(self) -> None:
        """End the server."""
        self._process.communicate()
