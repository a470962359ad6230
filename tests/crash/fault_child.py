"""A server that forks toy trainers, to which a test attaches strace before they begin.

Each says (see tests/support/forking.py) `recovered STEP`, `trained` (it waits for a line), `step SYNCED COMMITTED`,
`warning ...`, `refused ...`, `failed ...`, `half` (it waits for a line again), `end SUSPENDED COMMITTED STATE`.

stdout is a socket and all is said by sendto, which nothing else here calls: a test can let every write fail.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
import traceback
from typing import Any

import numpy.random  # noqa: F401  (it is imported lazily)

from tests.crash.toy_trainers import SIZES, state_sum
from tests.support.clock import FakeClock
from tests.support.forking import serve
from tests.support.toy import ToyTrainer, open_toy
from tranlogs import EverySteps, KeepLatest
from tranlogs.base.config import JournalConfig
from tranlogs.base.errors import TranLogsError
from tranlogs.log import preallocator

STDOUT = socket.socket(fileno=1)


def say(*words: object) -> None:
    STDOUT.sendall((" ".join(map(str, words)).replace("\n", "\\n") + "\n").encode())


class Saying(logging.Handler):
    """Warnings go to the test."""

    def emit(self, record: logging.LogRecord) -> None:
        say("warning", record.getMessage())


def train(job: dict[str, Any]) -> None:
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


def work(job: dict[str, Any]) -> None:
    """Train, under strace from the beginning if the job says so."""
    if job["attach"] == "opening":
        sys.stdin.readline()
    train(job)
    logging.shutdown()


def main() -> None:
    root = logging.getLogger("tranlogs")
    root.addHandler(Saying())
    root.propagate = False
    threading.excepthook = lambda caught: say("failed", "".join(traceback.format_exception(caught.exc_value)))
    serve(work, say=say, tell_error=lambda: say("failed", traceback.format_exc()))


if __name__ == "__main__":
    main()
