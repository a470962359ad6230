"""A server that forks toy trainers, so that a hundred of them can be killed in a few seconds.

A job is one line of JSON on stdin. On stdout come lines: `pid N`, then what the trainer says (`recovered STEP EXACT SUM`,
`timeline N`, `N` for each committed step, `count POINT N`), then `done`, and after another line on stdin `exit STATUS`.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from xxhash import xxh3_64_intdigest

from tranlogs import EverySteps, KeepLatest, failpoints
from tranlogs.config import JournalConfig
from tranlogs.testing.toy import open_toy
from tranlogs.wal import log

SIZES = (7, 300, 2500)


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def train(job: dict[str, Any]) -> None:
    log.SEGMENT_RECORDS_WANTED = 1  # small segments
    never = ",".join(f"{point}=eio@{1 << 40}" for point in failpoints.POINTS)
    failpoints._rules = failpoints._parse(job["failpoints"] or never)
    config = JournalConfig(durability=job["durability"], handover=job["handover"], segment_bytes=1 << 20)
    trainer = open_toy(job["run"], sizes=SIZES, config=config, policy=EverySteps(job.get("every", 6)),
                       retention=KeepLatest(job.get("keep", 1)))  # fmt: skip
    report = trainer.recover(job.get("rewind"))
    journal = trainer.journal
    say("timeline", journal.timeline)
    say("recovered", report.step, report.exact, xxh3_64_intdigest(trainer.state.everything()))
    trainer.state.lr *= job.get("factor", 1.0)  # so that timelines differ

    def behind(step: int) -> None:
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


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                train(json.loads(line))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        say("pid", child)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        say("done")  # not reaped yet: whoever still wants to kill it hits nobody else
        sys.stdin.readline()
        say("exit", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    main()
