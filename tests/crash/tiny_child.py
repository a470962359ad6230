"""Tiny steps, as fast as they can: `python tiny_child.py RUN HANDOVER DURABILITY`.

Prints a line of JSON on what came back, and one behind 10,000 more steps; then it waits to be killed.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Any

import numpy as np

from tests.support.toy import ToyState, ToyTrainer
from tranlogs.base.config import JournalConfig
from tranlogs.base.types import dense
from tranlogs.journal import Journal
from tranlogs.log.layout import Payload
from tranlogs.retention import EverySteps

STEPS = 10_000


class TinyState(ToyState):
    """Five numbers, whose gradients follow from the step's number."""

    def __init__(self) -> None:
        super().__init__((5,))
        self.step, self.drawn = 0, np.random.default_rng(1).standard_normal((64, 5))

    def gradients(self) -> dict[str, Any]:
        return {"w0": self.drawn[self.step % 64]}

    def auxiliary(self) -> dict[str, Any]:
        return {"step": self.step}

    def set_auxiliary(self, body: dict[str, Any]) -> None:
        self.step = body["step"]

    def take_step(self, step: int) -> None:
        self.apply(self.gradients(), self.lr)
        self.step = step


def is_right(state: TinyState) -> bool:
    expected = TinyState()
    for step in range(1, state.step + 1):
        expected.take_step(step)
    return all(
        np.array_equal(a["w0"], b["w0"])
        for a, b in ((state.parameters, expected.parameters), (state.momenta, expected.momenta))
    )


def main(run: str, writer: Any, durability: Any) -> None:
    start, state = time.monotonic(), TinyState()
    config = JournalConfig(writer=writer, durability=durability)
    trainer = ToyTrainer(Journal.open(run, framework="toy", config=config, policy=EverySteps(3000)), state)
    journal, report = trainer.journal, trainer.recover()
    seconds = time.monotonic() - start
    right = is_right(state) and state.step == report.step and report.exact is not False
    print(json.dumps({"step": report.step, "is_right": right, "seconds": seconds}), flush=True)
    begun = time.monotonic()
    for _ in range(STEPS):
        gradients = state.gradients()
        record = journal.begin_step(Payload.of([("grad/w0", dense(gradients["w0"]))]))
        state.take_step(journal.step + 1)
        journal.commit_step(record, {"lr": state.lr}, state.digest().to_bytes(8, "little"))
        journal.boundary(state.auxiliary(), state.snapshot)
    pace, committed = STEPS / (time.monotonic() - begun), journal.committed
    print(json.dumps({"pace": pace, "committed": committed, "at risk": journal.step - committed}), flush=True)
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
