"""Processes that tests of crashes start, stop and kill: each is forked, and does one of the jobs below.

A `Process` talks with its test in lines, over a socket that is its descriptor 0. What it warns of goes into a file.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lmdb
import pytest

from tests.crash import tally
from tests.crash.toy_trainers import SIZES, expected, state_sum
from tests.kills.launchers import forked
from tests.support.toy import ToyTrainer, open_toy
from tests.support.verify import verify_run
from tranlogs.base import failpoints
from tranlogs.base.config import JournalConfig
from tranlogs.base.errors import RunInUse, UsageError
from tranlogs.catalog import CATALOG_NAME, Catalog
from tranlogs.log.reader import SegmentReader
from tranlogs.retention import EverySteps, KeepLatest
from tranlogs.verify import Problem

_SECONDS_MAX = 120.0  # a guard; nothing here takes as long


class Talk:
    """The lines, as the process hears and says them."""

    def __init__(self) -> None:
        self._lines = os.fdopen(0, closefd=False)

    def say(self, *words: object) -> None:
        """Say a line."""
        os.write(0, (" ".join(map(str, words)) + "\n").encode())

    def hear(self) -> str:
        """Wait for a line. The process ends when nobody can say one any more."""
        line = self._lines.readline()
        if not line:
            os._exit(0)
        return line.strip()


class Process:
    """A process, as the test sees it.

    Args:
        errors: the file for what it warns of.
        work: what it does.
        arguments: of `work`.

    Attributes:
        pid: its number.
    """

    def __init__(self, errors: Path, work: Callable[..., None], *arguments: Any, **options: Any) -> None:
        self._errors = errors
        self._status: int | None = None
        here, there = socket.socketpair()

        def live() -> None:
            os.dup2(there.fileno(), 0)
            target = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(target, 1)
            os.dup2(target, 2)
            os.closerange(3, 4096)  # of the tests
            sys.stdout = sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            handle_warnings(logging.StreamHandler(sys.stderr))
            work(Talk(), *arguments, **options)

        self.pid = forked(live)
        there.close()
        self._socket, self._lines = here, here.makefile("r")

    def answer(self, seconds_max: float = _SECONDS_MAX) -> str:
        """Return the next line that it says."""
        self._socket.settimeout(seconds_max)
        line = self._lines.readline().strip()
        if not line:
            pytest.fail(f"no answer: {self.end()}")
        return line

    def begin(self, command: str) -> None:
        """Tell it to do something."""
        self._socket.sendall(f"{command}\n".encode())

    def do(self, command: str) -> str:
        """Tell it to do something; return what it answers."""
        self.begin(command)
        return self.answer()

    def do_until(self, command: str, is_done: Callable[[str], bool]) -> str:
        """Tell it to do something again and again, until an answer is the wanted one; return that."""
        until = time.monotonic() + _SECONDS_MAX
        while not is_done(answer := self.do(command)):
            assert time.monotonic() < until, f"{answer}\n{self.said}"
        return answer

    @property
    def said(self) -> str:
        """What it has warned of."""
        return self._errors.read_text()

    def wait_stopped(self) -> None:
        """Wait until it is stopped."""
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def stop(self) -> None:
        """Stop it by SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)
        self.wait_stopped()

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped; asked once after each stop."""
        return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG) is not None

    def go_on(self) -> None:
        """Let it go on by SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> str:
        """Kill it, if it has not ended; return what it has warned of."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()
        return self.said

    def wait(self) -> int:
        """Wait for its end; return how it ended."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self._lines.close()
            self._socket.close()
        return self._status


class Processes:
    """Starts processes, and kills those that are left at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, list[Process]()

    def __call__(self, work: Callable[..., None], *arguments: Any, **options: Any) -> Process:
        self._made.append(Process(self._folder / f"said{len(self._made)}", work, *arguments, **options))
        return self._made[-1]

    def close(self) -> None:
        """Kill all of them."""
        for process in self._made:
            process.end()


def handle_warnings(handler: logging.Handler) -> None:
    """Let a handler have all warnings, and no handler of the tests."""
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    handler.setLevel(logging.WARNING)
    logging.root.handlers[:] = [handler]


# Jobs.


def open_run(
    run: Path | str, durability: Any = "machine", writer: Any = "direct", every: int = 9, keep: int = 1, **config: Any
) -> ToyTrainer:
    """A toy trainer; its log is rolled and recycled all the time, if `segment_age_seconds` is small."""
    made = JournalConfig(durability=durability, writer=writer, segment_bytes=1 << 20, **config)
    return open_toy(run, sizes=SIZES, config=made, policy=EverySteps(every), retention=KeepLatest(keep))


def trainer(talk: Talk, run: Path, durability: str = "machine", *, waits: bool = False, **options: Any) -> None:
    """Do what is told; the first answer is `recovered STEP`, or `refused WHY`.

    | command | what is done, and answered |
    |---|---|
    | train N | train N more steps: the newest committed step, or "suspended" |
    | copy PATH | copy the run with shutil.copytree, within this process |
    | closeall | close all descriptors from 3 on, as a daemon does, and stop |
    | closeowned | close all descriptors from 3 on, and go on |
    | stopin N | stop within the first of N more steps, and train them when the process goes on |
    | fork, exec | start a child that sleeps, or a program: its number |
    | close, seal, shut_down | end the log |
    | die | end by SIGKILL, after 20 steps |
    """
    if waits:
        talk.hear()
    try:
        made = open_run(run, durability, **{"every": 50, "keep": 3, **options})
    except (RunInUse, UsageError) as error:
        talk.say("refused", error)
        return
    journal = made.journal
    talk.say("recovered", made.recover().step)
    while True:
        command, _, argument = talk.hear().partition(" ")
        answer: object = "done"
        if command == "train":
            made.train(journal.step + int(argument), lambda _: time.sleep(0.002))
            answer = "suspended" if journal.is_suspended else journal.committed
        elif command == "copy":
            shutil.copytree(run, argument)
        elif command in ("closeall", "closeowned"):
            os.closerange(3, 256)
            if command == "closeall":
                os.kill(os.getpid(), signal.SIGSTOP)
        elif command == "stopin":
            first = journal.step + 1
            made.train(first, lambda _: os.kill(os.getpid(), signal.SIGSTOP))
            made.train(first + int(argument) - 1)
        elif command == "fork":
            answer = os.fork()
            if answer == 0:
                time.sleep(600)
        elif command == "exec":
            answer = subprocess.Popen(["sleep", "600"], close_fds=False).pid
        elif command == "close":
            journal.close()
        elif command == "seal":
            answer = journal.seal(20.0)
        elif command == "shut_down":
            answer = journal.shut_down(20.0)
        elif command == "die":
            made.train(journal.step + 20)
            os.kill(os.getpid(), signal.SIGKILL)
        talk.say(answer)


def reader(talk: Talk, run: Path) -> None:
    """Read the catalog's rows in one transaction, and have all segments open, until a line comes."""
    folder = run / "rank0"
    catalog = Catalog.open(folder)
    readers = [SegmentReader(path) for path in sorted((folder / "log").glob("*.seg"))]

    def look(tables: Any) -> None:
        talk.say("reading", len(readers))
        talk.hear()

    catalog.read(look)


def holder(talk: Talk, run: Path) -> None:
    """Hold a write transaction of the catalog, as a tool of LMDB can, until a line comes."""
    env = lmdb.open(str(run / "rank0" / CATALOG_NAME), subdir=False, map_size=1 << 28, lib_version=0)
    with env.begin(write=True):
        talk.say("holding")
        talk.hear()
    talk.say("done")
    talk.hear()


def monitor(talk: Talk, root: Path, point: str) -> None:
    """Watch the runs in a folder, prune all that may go, and be stopped when a fault point is first passed."""
    from tests.monitor.monitors import watching_daemon

    failpoints._rules = failpoints._parse(f"{point}=kill@1")
    failpoints.signal = SimpleNamespace(SIGKILL=signal.SIGSTOP)  # type: ignore[attr-defined]
    daemon = watching_daemon(root, nbytes=1)
    while True:
        daemon.evaluate()
        time.sleep(0.02)


def judge_runs(talk: Talk) -> None:
    """Recover each run that is named, with the least step and the steps to train on; answer what came of it."""
    said = list[str]()
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    handle_warnings(handler)
    while True:
        run, least, more = json.loads(talk.hear())
        said.clear()
        try:
            verdict = _judged(run, least, more, said)
        except BaseException:
            verdict = {"failed": traceback.format_exc(), "files": sorted(map(str, Path(run).rglob("*")))}
        talk.say(json.dumps(verdict))


def _judged(run: str, least: int, more: int, said: list[str]) -> dict[str, Any]:
    start = time.monotonic()
    first = open_run(run, segment_age_seconds=0.03)
    report = first.recover()
    seconds = time.monotonic() - start
    assert report.step >= least, f"step {least} was synced, and recovery landed on {report.step}: {report.notes}"
    assert state_sum(first.state) == expected(report.step), f"the state at step {report.step} is WRONG"
    first.train(report.step + more)
    first.journal.close()
    again = open_run(run, segment_age_seconds=0.03)
    second = again.recover()
    assert second.step == report.step + more, f"trained to {report.step + more}, came back to {second.step}: {said}"
    assert state_sum(again.state) == expected(second.step), f"the state at step {second.step} is WRONG"
    again.journal.close()
    problems = [str(finding) for finding in verify_run(run) if isinstance(finding, Problem)]
    return {"step": report.step, "least": least, "notes": report.notes, "problems": problems, "seconds": seconds}


class Judge:
    """A process that judges runs, so that no run can end the test's own.

    Args:
        folder: for what it warns of.
        fault: under which verdicts are taken down, if it is given.
    """

    def __init__(self, folder: Path, fault: str | None) -> None:
        self._process, self._fault = Process(folder / "judge", judge_runs), fault

    def __call__(self, run: Path, least: int, more: int = 20, *, is_whole: bool = True) -> dict[str, Any]:
        """Demand that a run recovers to a step at least, goes on from there, and is sound then; return what came of it.

        A copy of a run that was written meanwhile (`is_whole=False`) may lack files, and is not sound then.
        """
        verdict: dict[str, Any] = json.loads(self._process.do(json.dumps([str(run), least, more])))
        is_lost = "failed" in verdict or bool(verdict["problems"])
        if self._fault is not None:
            tally.note(self._fault, losses=is_lost, seconds=verdict.get("seconds", 0.0))
        print(run, verdict)
        assert "failed" not in verdict, verdict["failed"]
        assert not is_whole or verdict["problems"] == []
        return verdict

    def close(self) -> None:
        """End it."""
        self._process.end()


class Free:
    """A trainer that nobody tells what to do; where it is, is always at hand.

    Args:
        errors: the file for what it warns of.
        run: the run.
        until: the last step.
        pause: seconds after each step.
        options: of `open_run`.
    """

    def __init__(self, errors: Path, run: Path, until: int = 10**9, pause: float = 0.0, **options: Any) -> None:
        self._marks = mmap.mmap(-1, mmap.PAGESIZE)  # shared: known at once, however late this process gets its turn
        self.process = Process(errors, self._train, run, until, pause, **options)

    def _train(self, talk: Talk, run: Path, until: int, pause: float, **options: Any) -> None:
        made = open_run(run, segment_age_seconds=0.03, **options)
        made.recover()

        def note(step: int) -> None:
            journal = made.journal
            struct.pack_into("3q", self._marks, 0, step, journal.synced, journal.committed)
            # Where logging is suspended, steps of nothing else would be thousands a second.
            time.sleep(0.005 if journal.committed < step - 100 else pause)

        made.train(until, note)
        made.journal.close()
        talk.say("closed")

    @property
    def marks(self) -> tuple[int, int, int]:
        """The step, and what is synced and committed."""
        step, synced, committed = struct.unpack_from("3q", self._marks, 0)
        return step, synced, committed

    def wait_for(self, more: int) -> tuple[int, int, int]:
        """Wait for some more steps; return the marks of then."""
        target, until = self.marks[0] + more, time.monotonic() + _SECONDS_MAX
        while self.marks[0] < target:
            assert time.monotonic() < until, self.process.said
            time.sleep(0.001)
        return self.marks


@contextmanager
def training(errors: Path, run: Path, **options: Any) -> Iterator[Free]:
    """A trainer that trains until the end of the block."""
    made = Free(errors, run, **options)
    try:
        yield made
    finally:
        with suppress(ProcessLookupError):
            print(made.process.end()[-2000:])
