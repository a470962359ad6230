"""Trains until it is killed: `python copied_child.py RUN DURABILITY SAID`. Says each committed step in the file SAID."""

from __future__ import annotations

import sys
import time

import numpy as np
from power_child import SIZES

from tests.support.toy import open_toy
from tranlogs.base.config import JournalConfig
from tranlogs.retention import EverySteps, KeepLatest


def main(run: str, durability: str, said: str) -> None:
    newest = np.memmap(said, np.int64, "r+", shape=1)
    config = JournalConfig(durability=durability, segment_bytes=1 << 20, segment_age_seconds=0.03)  # type: ignore[arg-type]
    trainer = open_toy(run, sizes=SIZES, config=config, policy=EverySteps(20), retention=KeepLatest(3))
    trainer.recover()

    def say(step: int) -> None:
        newest[0] = step
        time.sleep(0.001)  # a step takes a moment

    trainer.train(10**9, say)


if __name__ == "__main__":
    main(*sys.argv[1:])
