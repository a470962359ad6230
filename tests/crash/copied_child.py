"""Trains until it is killed: `python copied_child.py RUN DURABILITY`. Prints each committed step."""

from __future__ import annotations

import sys
import time

from power_child import SIZES

from tests.support.toy import open_toy
from tranlogs.base.config import JournalConfig
from tranlogs.retention import EverySteps, KeepLatest


def main(run: str, durability: str) -> None:
    config = JournalConfig(durability=durability, segment_bytes=1 << 20, segment_age_seconds=0.03)  # type: ignore[arg-type]
    trainer = open_toy(run, sizes=SIZES, config=config, policy=EverySteps(20), retention=KeepLatest(3))
    trainer.recover()

    def say(step: int) -> None:
        print(step, flush=True)
        time.sleep(0.001)  # a step takes a moment

    trainer.train(10**9, say)


if __name__ == "__main__":
    main(*sys.argv[1:])
