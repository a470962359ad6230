"""A server that forks toy trainers, so that a hundred of them can be killed in a few seconds.

A job is one line of JSON on stdin. On stdout come lines: `pid N`, then what the trainer says (`recovered STEP EXACT SUM
SECONDS`, or `refused WHY` where it cannot be wound back, `timeline N`, `N` for each committed step, `suspended`,
`count POINT N`), then `done`, and after another line on stdin `exit STATUS`.

Its clock jumps if the job has a seed for that ("jumps"); "errors" are fault points that count from recovery on.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from typing import Any

from xxhash import xxh3_64_intdigest

from tranlogs import EverySteps, KeepLatest, failpoints
from tranlogs.clock import Clock, SystemClock
from tranlogs.config import JournalConfig
from tranlogs.errors import RecoveryError
from tranlogs.testing.clock import FakeClock
from tranlogs.testing.toy import open_toy
from tranlogs.wal import log

SIZES = (7, 300, 2500)


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class JumpingClock(FakeClock):
    """The time of day is set anew all the time, by days; the monotonic one goes on."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = random.Random(seed)

    def now(self) -> float:
        return 1e9 + self._chance.uniform(-1e6, 1e6)


def train(job: dict[str, Any]) -> None:
    log.SEGMENT_RECORDS_WANTED = 1  # small segments
    never = ",".join(f"{point}=eio@{1 << 40}" for point in failpoints.POINTS)
    failpoints._rules = failpoints._parse(job["failpoints"] or never)
    config = JournalConfig(durability=job["durability"], handover=job["handover"], segment_bytes=1 << 20)
    start, clock = time.monotonic(), _clock(job.get("jumps"))
    trainer = open_toy(job["run"], sizes=SIZES, config=config, policy=EverySteps(job.get("every", 6)),
                       retention=KeepLatest(job.get("keep", 1)), clock=clock)  # fmt: skip
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

    def behind(step: int) -> None:
        if isinstance(clock, FakeClock):
            clock.advance(5.0)
        if journal.is_suspended:
            say("suspended")
        if job["settles"]:
            journal.wait_synced()
            journal.wait_checkpoint()
        if journal.config.handover == "thread" and step % 3 == 0:
            journal.wait_synced()
        say(journal.committed)
        if journal._wal is not None and (job["settles"] or (step % 5 == 0 and journal.config.handover == "direct")):
            journal._wal.roll()

    trainer.train(job["until"], behind)
    journal.close()
    for point, rule in failpoints._rules.items():
        say("count", point, rule.count)


def _clock(seed: int | None) -> Clock:
    return SystemClock() if seed is None else JumpingClock(seed)


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            say("pid", os.getpid())  # not by its parent, whose words may come behind those of the child
            try:
                train(json.loads(line))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        say("done")  # not reaped yet: whoever still wants to kill it hits nobody else
        sys.stdin.readline()
        say("exit", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    main()
