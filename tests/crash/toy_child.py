"""A server that forks toy trainers, so that a hundred of them can be killed in a few seconds.

Each says (see tests/support/forking.py) `recovered STEP EXACT SUM SECONDS`, or `refused WHY` where it cannot be wound back,
`timeline N`, `N` for each committed step, `suspended`, `full` (older checkpoints made room, or one came ahead of time),
`count POINT N`, `forked STATUS`.

Its clock jumps if the job has a seed for that ("jumps"), and only ticks if the job says so ("ticks"). With a seed for forks
("forks") it forks now and then: some children try to log, some end as interpreters do, some stay when it is dead. "errors"
are fault points that count from recovery on. With a "limit" it trains while file handles or address space are used up, and says
`warning ...`, `wrong ...`, and `step N` at its end.

As a server whose stdout is a socket it forks trainers to which a test attaches strace before they begin. Each says `recovered
STEP`, `trained` (it waits for a line), `step SYNCED COMMITTED`, `warning ...`, `refused ...`, `failed ...`, `half` (it waits
again), `end SUSPENDED COMMITTED STATE`: all by sendto, which nothing else here calls, so that every write may fail.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import random
import resource
import signal
import socket
import stat
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy.random  # noqa: F401  (it is imported lazily)

from tests.crash.toy_trainers import SIZES, expected, state_sum
from tests.support.clock import FakeClock
from tests.support.forking import Say, say, serve
from tests.support.toy import ToyTrainer, open_toy
from tranlogs import EverySeconds, EverySteps, KeepLatest
from tranlogs.base import failpoints
from tranlogs.base.clock import Clock
from tranlogs.base.config import JournalConfig
from tranlogs.base.errors import RecoveryError, TranLogsError
from tranlogs.journal.journal import Journal
from tranlogs.log import preallocator
from tranlogs.log.layout import Payload

ROUNDS = 12  # of a limit
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


class JumpingClock(FakeClock):
    """The time of day is set anew all the time, by days; the monotonic one goes on."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = random.Random(seed)

    def now(self) -> float:
        return 1e9 + self._chance.uniform(-1e6, 1e6)


def train(job: dict[str, Any]) -> None:
    preallocator.SEGMENT_RECORDS_WANTED = 1  # small segments
    never = ",".join(f"{point}=eio@{1 << 40}" for point in failpoints.POINTS)
    failpoints._rules = failpoints._parse(job["failpoints"] or never)
    config = JournalConfig(durability=job["durability"], writer=job["writer"], segment_bytes=1 << 20)
    start, clock = time.monotonic(), _clock(job)
    policy = EverySeconds(30) if job.get("by_time") else EverySteps(job.get("every", 6))
    trainer = open_toy(
        job["run"], sizes=SIZES, config=config, policy=policy, retention=KeepLatest(job.get("keep", 1)), clock=clock
    )
    try:
        report = trainer.recover(job.get("rewind"))
    except RecoveryError as error:
        if job.get("rewind") is None:
            raise
        say("refused", error)
        return
    journal = trainer.journal
    say("timeline", journal.timeline)
    say("recovered", report.step, report.exact, state_sum(trainer.state), time.monotonic() - start)
    failpoints._rules |= failpoints._parse(job.get("errors", ""))
    trainer.state.lr *= job.get("factor", 1.0)  # so that timelines differ

    forks = random.Random(job["forks"]) if "forks" in job else None

    def behind(step: int) -> None:
        if isinstance(clock, FakeClock):
            clock.advance(5.0)
        if journal.is_suspended:
            say("suspended")
        if journal.checkpoints.has_warned_full or journal.checkpoints.disk_space.has_warned:
            say("full")
        if job["settles"]:
            journal.wait_synced()
            journal.wait_checkpoint()
            _wait_prepared(journal)
        if journal.config.writer == "thread" and step % 3 == 0:
            journal.wait_synced()
        if step % 8 == 0:  # fewer log files are in use than at the checkpoint before: some of the spare ones are deleted
            journal.checkpoint(trainer.state.snapshot())
        if forks is not None and forks.random() < 0.3:
            _fork(trainer, forks.choice(["logs", "ends", "stays"]))
        say(journal.committed)
        if journal.log.wal is not None and (job["settles"] or (step % 5 == 0 and journal.config.writer == "direct")):
            journal.log.wal.roll()
            if job["settles"]:
                _wait_prepared(journal)

    trainer.train(job["until"], behind)
    journal.close()
    for point, rule in failpoints._rules.items():
        say("count", point, rule.count)


def _wait_prepared(journal: Journal) -> None:
    """Wait until the next log file is there, or is known not to come."""
    if journal.log.wal is None:
        return
    prepared = journal.log.wal._preallocator
    with prepared._changed:
        while prepared._ready is None and prepared._failure is None:
            prepared._changed.wait()


def _clock(job: dict[str, Any]) -> Clock:
    if job.get("jumps") is not None:
        return JumpingClock(job["jumps"])
    return FakeClock() if job.get("ticks") else Clock()


def _fork(trainer: ToyTrainer, what: str) -> None:
    child = os.fork()
    if child:
        if what != "stays":
            say("forked", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return
    status = 1
    try:
        signal.alarm(60 if what != "stays" else 3)  # nobody waits for ever
        if what == "stays":
            signal.pause()
        status = 0 if what == "logs" and _logs_nothing(trainer) else 1
        if what == "ends":
            atexit._run_exitfuncs()
            status = 0
    finally:
        os._exit(status)


def _logs_nothing(trainer: ToyTrainer) -> bool:
    """What a child does to a journal that is not its own, all in vain."""
    journal, record = trainer.journal, trainer.journal.begin_step(Payload.of([]))
    journal.commit_step(record, {})
    journal.append_image(Payload.of([]), {})
    journal.boundary({}, trainer.state.snapshot, checkpoint=True)
    has_logged = journal.checkpoint(trainer.state.snapshot(), wait=True)
    journal.close()
    return record is None and not has_logged and not journal.is_writer


# Limits.


@contextmanager
def no_handles(leave: int) -> Iterator[None]:
    """All file handles are used up but `leave`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        for _ in range(min(leave, len(held))):
            os.close(held.pop())
    try:
        yield
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def get_memory_ahead() -> None:
    """The trainer's own arrays come from memory that it has; what fails is a new map, or a stack."""
    malloc = ctypes.CDLL(None)
    assert malloc.mallopt(M_TRIM_THRESHOLD, 1 << 30) == malloc.mallopt(M_MMAP_THRESHOLD, 1 << 25) == 1
    ahead = [bytearray(1 << 20) for _ in range(32)]
    del ahead


@contextmanager
def no_memory(leave: int) -> Iterator[None]:
    """No address space can be had but `leave` MiB: no map, and often no stack for a thread."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (leave << 20), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def train_under_limit(job: dict[str, Any]) -> None:
    say_warnings(say)
    threading.excepthook = lambda caught: say("wrong", *traceback.format_exception(caught.exc_value)[-1:])
    get_memory_ahead()
    preallocator.SEGMENT_RECORDS_WANTED = 1  # small segments
    chance, clock = random.Random(job["seed"]), FakeClock()
    scarce, leaves = (no_handles, range(8)) if job["limit"] == "handles" else (no_memory, (1, 1, 1, 2, 3, 9))

    def opened() -> ToyTrainer:
        config = JournalConfig(segment_bytes=1 << 20, writer=chance.choice(["direct", "thread"]))
        return open_toy(job["run"], sizes=SIZES, config=config, policy=EverySteps(6), retention=KeepLatest(1), clock=clock)

    def behind(step: int) -> None:
        clock.advance(1.0)
        if chance.random() < 0.3:
            trainer.journal.wait_synced()
        if turn == 0 or chance.random() < 0.3:
            trainer.journal.wait_checkpoint()  # the next one is not passed over because this one is still being written
        if chance.random() < 0.3 and trainer.journal.config.writer == "direct" and trainer.journal.log.wal is not None:
            trainer.journal.log.wal.roll()

    trainer = opened()
    trainer.recover()
    for turn in range(ROUNDS):
        with scarce(leaves[0] if turn == 0 else chance.choice(leaves)):
            trainer.train(trainer.journal.step + 15, behind)
        for _ in range(3):
            clock.advance(1000)
            trainer.journal.wait_checkpoint()  # logging does not resume while one is being written
            trainer.train(trainer.journal.step + 2)
        trainer.journal.wait_synced()
        step = trainer.journal.step
        if trainer.journal.is_suspended or trainer.journal.committed != step:
            say("wrong", f"logging does not go on at step {step}")
        if state_sum(trainer.state) != expected(step):
            say("wrong", f"the state at step {step} is WRONG")
        if chance.random() < 0.3:
            trainer.journal.close()
            trainer = opened()
            if (found := trainer.recover().step) != step:
                say("wrong", f"recovery landed on {found} instead of {step}")
    trainer.journal.close()
    say("step", trainer.journal.step)


# Under strace.


def train_under_strace(job: dict[str, Any], say: Say) -> None:
    """Train to `until` with the fault, and to `end` without it."""
    preallocator.SEGMENT_RECORDS_WANTED = 1  # small segments
    clock = FakeClock()
    config = JournalConfig(durability=job["durability"], writer=job["writer"], segment_bytes=1 << 20)

    def opened() -> ToyTrainer:
        return open_toy(job["run"], sizes=SIZES, config=config, policy=EverySteps(6), retention=KeepLatest(1), clock=clock)

    try:
        trainer = opened()
        report = trainer.recover()
        for note in report.notes:
            say("warning", note)
        say("recovered", report.step)
    except TranLogsError as error:
        say("refused", type(error).__name__, error)
        return
    journal, chance = trainer.journal, job["settles"]

    def behind(step: int) -> None:
        clock.advance(5.0)
        if chance:
            journal.wait_synced()
            journal.wait_checkpoint()
        say("step", journal.synced, journal.committed)
        if journal.log.wal is not None and step % 4 == 0 and (chance or journal.config.writer == "direct"):
            journal.log.wal.roll()  # not while a writer thread is in the middle of an entry

    if job["attach"] == "training":
        trainer.train(journal.step + 2, behind)
        say("trained")
        sys.stdin.readline()
    trainer.train(job["until"], behind)
    if job["attach"] == "closing":
        say("trained")
        sys.stdin.readline()
        journal.close()
    say("half")
    sys.stdin.readline()
    if job["attach"] == "closing":
        trainer = opened()
        say("recovered", trainer.recover().step)
        journal = trainer.journal
    for step in range(job["until"] + 1, job["end"] + 1):
        clock.advance(100.0)
        journal.wait_checkpoint()  # one that is still being written: logging does not resume before it is done
        trainer.train(step)
    journal.wait_synced()
    say("end", journal.is_suspended, journal.committed, state_sum(trainer.state))
    journal.close()


def serve_for_strace(stdout: socket.socket) -> None:
    def say(*words: object) -> None:
        stdout.sendall((" ".join(map(str, words)).replace("\n", "\\n") + "\n").encode())

    def work(job: dict[str, Any]) -> None:
        if job["attach"] == "opening":
            sys.stdin.readline()
        train_under_strace(job, say)
        logging.shutdown()

    say_warnings(say)
    threading.excepthook = lambda caught: say("failed", "".join(traceback.format_exception(caught.exc_value)))
    serve(work, say=say, tell_error=lambda: say("failed", traceback.format_exc()))


def say_warnings(say: Say) -> None:
    """Let the test have what is logged."""
    handler, logger = logging.Handler(logging.WARNING), logging.getLogger("tranlogs")
    handler.emit = lambda record: say("warning", record.getMessage().replace("\n", "\\n"))  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.propagate = False


if __name__ == "__main__":
    if stat.S_ISSOCK(os.fstat(1).st_mode):
        serve_for_strace(socket.socket(fileno=1))
    else:
        serve(lambda job: train_under_limit(job) if "limit" in job else train(job))
