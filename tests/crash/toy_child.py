"""A server that forks toy trainers, so that a hundred of them can be killed in a few seconds.

Each says (see tests/support/forking.py) `recovered STEP EXACT SUM SECONDS`, or `refused WHY` where it cannot be wound back,
`timeline N`, `N` for each committed step, `suspended`, `full` (older checkpoints made room, or one came ahead of time),
`count POINT N`, `forked STATUS`.

Its clock jumps if the job has a seed for that ("jumps"), and only ticks if the job says so ("ticks"). With a seed for forks
("forks") it forks now and then: some children try to log, some end as interpreters do, some stay when it is dead. "errors"
are fault points that count from recovery on.
"""

from __future__ import annotations

import atexit
import os
import random
import signal
import time
from typing import Any

from xxhash import xxh3_64_intdigest

from tests.support.clock import FakeClock
from tests.support.forking import say, serve
from tests.support.toy import ToyTrainer, open_toy
from tranlogs import EverySeconds, EverySteps, KeepLatest
from tranlogs.base import failpoints
from tranlogs.base.clock import Clock
from tranlogs.base.config import JournalConfig
from tranlogs.base.errors import RecoveryError
from tranlogs.journal.journal import Journal
from tranlogs.log import preallocator
from tranlogs.log.layout import Payload

SIZES = (7, 300, 2500)


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
    say("recovered", report.step, report.exact, xxh3_64_intdigest(trainer.state.everything()), time.monotonic() - start)
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


if __name__ == "__main__":
    serve(train)
