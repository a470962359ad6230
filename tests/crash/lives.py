"""A run of many lives, each with a fault of its kind and often a SIGKILL: what was committed comes back, to the bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash import tally
from tests.crash.toy_trainers import Outcome, Trainers
from tests.support.verify import verify_run
from tranlogs.verify import Problem


class Lives:
    """The lives of one run.

    Args:
        trainers: that live them.
        run: the run's folder.
        fault: whose tries are counted.
        was_hit: whether a life met the fault.
        chance: where it comes from what happens.
    """

    def __init__(
        self, trainers: Trainers, run: Path, fault: str, was_hit: Callable[[Outcome], bool], chance: random.Random
    ) -> None:
        self.run, self.committed, self.hits = run, 0, 0
        self._trainers, self._fault, self._was_hit, self._chance = trainers, fault, was_hit, chance
        self._hit_before = False

    def live(self, steps: int = 30, **more: Any) -> Outcome:
        """One life, killed at any moment or ended in order."""
        chance = self._chance
        moment = (chance.randrange(1, steps), chance.random() * 0.005) if chance.random() < 0.7 else None
        return self._live(
            kill_after=moment,
            until=self.committed + steps,
            writer=chance.choice(["direct", "thread"]),
            durability=chance.choice(["process", "machine"]),
            settles=chance.random() < 0.5,
            keep=chance.randrange(1, 4),
            every=chance.choice([4, 6, 1000]),
            **more,
        )

    def end(self) -> None:
        """Two lives in which nothing happens: what the last one left is there, it goes on, and nothing is damaged."""
        for _ in range(2):
            outcome = self._live(until=self.committed + 3)
            assert outcome.status == 0
            assert outcome.committed == self.committed
        with tally.trying(self._fault):
            assert [str(found) for found in verify_run(self.run) if isinstance(found, Problem)] == []

    def _live(self, **job: Any) -> Outcome:
        with tally.trying(self._fault):
            outcome = self._trainers.run(self.run, **job)
            print(job, outcome)
            assert outcome.status == 0 or outcome.was_killed, f"the trainer ended with {outcome.status}"
            if outcome.recovered is not None:
                assert outcome.recovered >= self.committed, (
                    f"step {self.committed} was committed, {outcome.recovered} came back"
                )
                self.committed = outcome.committed
        if outcome.recovered is not None and self._hit_before:
            tally.note(self._fault, 0, seconds=outcome.seconds)
        self._hit_before = self._was_hit(outcome)
        self.hits += self._hit_before
        tally.note(self._fault, int(self._hit_before))
        return outcome
