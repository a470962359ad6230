"""Trainers whose system calls fail: strace is attached to one, and lets its n-th call of a kind fail, or kills it there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.forking import REAP, ForkServer

CHILD = Path(__file__).with_name("fault_child.py")


def demand_strace() -> None:
    """Skip the test where there is no strace, or fail it where nothing may be skipped."""
    if shutil.which("strace") is not None:
        return
    if os.environ.get("TRANLOGS_REQUIRE_ALL") == "1":
        pytest.fail("TRANLOGS_REQUIRE_ALL=1, and this test needs strace")
    pytest.skip("needs strace")


@contextmanager
def attached(pid: int, *options: str) -> Iterator[None]:
    """strace follows a process and the threads that it will have, until the end of the block."""
    tracer = subprocess.Popen(["strace", "-f", "-p", str(pid), *options], stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    try:
        first = tracer.stderr.readline()
        assert "attached" in first, first
        yield
    finally:
        tracer.send_signal(signal.SIGINT)  # it detaches, and the process goes on
        tracer.communicate()


@dataclass
class Outcome:
    """What a trainer said before it ended."""

    status: int = 0
    recovered: int | None = None
    synced: int = 0
    committed: int = 0
    warnings: list[str] = field(default_factory=list)
    refused: str = ""
    failed: str = ""
    hit: set[str] = field(default_factory=set)  # the calls that strace let fail
    is_half: bool = False  # it came to the end of what it was to do under strace
    end: list[str] = field(default_factory=list)  # whether logging is suspended, what is committed, the state's sum

    def note(self, word: str, rest: str) -> None:
        """Take down a line."""
        if word == "recovered":
            self.recovered = self.committed = self.synced = int(rest)
        elif word == "step":
            self.synced, self.committed = map(int, rest.split())
        elif word == "warning":
            self.warnings.append(rest)
        elif word in ("refused", "failed"):
            setattr(self, word, rest)
        elif word == "half":
            self.is_half = True
        elif word == "end":
            self.end = rest.split()

    @property
    def was_killed(self) -> bool:
        return self.status == -signal.SIGKILL


class Trainers:
    """Forks trainers and attaches strace to them."""

    def __init__(self) -> None:
        here, there = socket.socketpair()
        with there:
            self._server = ForkServer(CHILD, stdout=there)
        self._said = here.makefile("rb")
        here.close()

    def stop(self) -> None:
        """End the server."""
        self._server.close()
        self._said.close()

    def run(
        self,
        run: Path,
        *options: str,
        until: int,
        end: int,
        attach: str = "training",
        writer: str = "direct",
        durability: str = "machine",
        settles: bool = True,
    ) -> Outcome:
        """Train in a child under strace.

        Args:
            run: the run's folder.
            options: of strace, but for its output, which is beside the run.
            until: the last step under strace.
            end: the last step.
            attach: whether strace is there from "opening" the run on, from "training" on, or while it is "closing".
            writer: of the journal.
            durability: of the journal.
            settles: whether all threads are idle between steps.
        """
        job: dict[str, Any] = {"run": str(run), "until": until, "end": end, "attach": attach, "writer": writer}
        self._server.tell({**job, "durability": durability, "settles": settles})
        outcome, trace = Outcome(), run.with_suffix(".trace")
        pid = int(self._listen(outcome, "pid"))
        if attach != "opening":
            self._listen(outcome, "trained")
        with attached(pid, *options, "-o", str(trace)):
            self._server.tell({})
            self._listen(outcome, "half", "done")
        if outcome.is_half:
            self._server.tell({})
            self._listen(outcome, "done")
        self._server.tell(REAP)
        outcome.status = int(self._listen(outcome, "exit"))
        failed = re.findall(r"^\d+ +(?:<\.\.\. )?(\w+).*\(INJECTED\)$", trace.read_text(), re.MULTILINE)
        outcome.hit = set(failed)
        return outcome

    def _listen(self, outcome: Outcome, *words: str) -> str:
        """Note what the trainer says, up to one of the words; gives what follows it."""
        for line in self._said:
            word, _, rest = line.decode().rstrip("\n").partition(" ")
            outcome.note(word, rest)
            if word in words:
                return rest
        raise AssertionError("the server has ended")
