"""Child processes of test_power_cut.py.

python power_child.py train RUN DURABILITY UNTIL     trains, and prints `synced committed` after each step
python power_child.py judge                          reads `RUN STEP [MORE]` lines; recovers each run, at least to that step
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import xxhash

from tests.support.toy import ToyState, ToyTrainer, open_toy
from tests.support.verify import verify_run
from tranlogs.base.config import JournalConfig
from tranlogs.retention import EverySteps, KeepLatest
from tranlogs.verify import Problem

SIZES = (7, 3000, 5000)


def open_run(run: str, durability: str = "machine") -> ToyTrainer:
    """Segments of some steps each, so that they roll and are recycled all the time; the newest checkpoint only."""
    config = JournalConfig(durability=durability, segment_bytes=1 << 20, segment_age_seconds=0.03)  # type: ignore[arg-type]
    return open_toy(run, sizes=SIZES, config=config, policy=EverySteps(9), retention=KeepLatest(1))


def train(run: str, durability: str, until: str) -> None:
    logging.basicConfig(level=logging.WARNING)
    trainer = open_run(run, durability)
    trainer.recover()

    def say(step: int) -> None:
        print(trainer.journal.synced, trainer.journal.committed, flush=True)
        if trainer.journal.committed < step - 100:  # logging is suspended: steps of nothing else would be thousands a second
            time.sleep(0.005)

    trainer.train(int(until), say)
    trainer.journal.close()
    print("closed", flush=True)


class Judge:
    """Knows the state after each step of a run that nothing happened to."""

    def __init__(self) -> None:
        self.state, self.sums, self.said = ToyState(SIZES), list[int](), list[str]()
        self.sums.append(self.sum_of(self.state))
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self.said.append(record.getMessage())  # type: ignore[method-assign]
        logging.basicConfig(handlers=[handler])

    @staticmethod
    def sum_of(state: ToyState) -> int:
        return xxhash.xxh3_64_intdigest(state.everything())

    def expected(self, step: int) -> int:
        while len(self.sums) <= step:
            self.state.take_step(len(self.sums))
            self.sums.append(self.sum_of(self.state))
        return self.sums[step]

    def judge(self, run: str, least: int, more: int = 20) -> dict[str, Any]:
        """Recover a run, train `more` steps, and recover it again."""
        start = time.monotonic()
        self.said.clear()
        first = open_run(run)
        report = first.recover()
        seconds = time.monotonic() - start
        assert report.step >= least, f"step {least} was synced, and recovery landed on {report.step}: {report.notes}"
        assert self.sum_of(first.state) == self.expected(report.step), f"the state at step {report.step} is WRONG"
        first.train(report.step + more)
        first.journal.close()
        again = open_run(run)
        second = again.recover()
        assert second.step == report.step + more, f"trained to {report.step + more}, came back to {second.step}: {self.said}"
        assert self.sum_of(again.state) == self.expected(second.step), f"the state at step {second.step} is WRONG"
        again.journal.close()
        problems = [str(finding) for finding in verify_run(run) if isinstance(finding, Problem)]
        return {"step": report.step, "least": least, "notes": report.notes, "problems": problems, "seconds": seconds}


def main() -> None:
    if sys.argv[1] == "train":
        train(*sys.argv[2:])
        return
    judge = Judge()
    for line in sys.stdin:
        run, *numbers = line.split()
        try:
            verdict = judge.judge(run, *map(int, numbers))
        except BaseException:
            verdict = {"failed": traceback.format_exc(), "files": sorted(map(str, Path(run).rglob("*")))}
        print(json.dumps(verdict), flush=True)


if __name__ == "__main__":
    main()
