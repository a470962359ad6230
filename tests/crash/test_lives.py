"""Runs of many lives, each with a fault of one kind and often a SIGKILL: a disk that fills up, or forks. All comes back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.crash import tally
from tests.crash.toy_trainers import Outcome, Trainers
from tests.support import campaign, disks
from tests.support.verify import verify_run
from tranlogs.base.config import MIB
from tranlogs.verify import Problem

pytestmark = pytest.mark.crash

SEEDS = pytest.mark.parametrize("seed", campaign.seeds(1), ids=str)
LIVES = 8


class Lives:
    """The lives of one run.

    Args:
        trainers: that live them.
        run: the run's folder.
        fault: whose tries are counted.
        was_hit: whether a life met the fault.
        seed: what happens comes from it.
    """

    def __init__(self, trainers: Trainers, run: Path, fault: str, was_hit: Callable[[Outcome], bool], seed: int) -> None:
        print(f"repeat with TRANLOGS_SEED={seed}")
        self.run, self.committed, self.hits, self.chance = run, 0, 0, random.Random(seed)
        self._trainers, self._fault, self._was_hit = trainers, fault, was_hit
        self._hit_before = False

    def live(self, steps: int = 30, **more: Any) -> Outcome:
        """One life, killed at any moment or ended in order."""
        chance = self.chance
        return self._live(
            kill_after=(chance.randrange(1, steps), chance.random() * 0.005) if chance.random() < 0.7 else None,
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
            assert (outcome.status, outcome.committed) == (0, self.committed)
        with tally.trying(self._fault):
            assert [str(found) for found in verify_run(self.run) if isinstance(found, Problem)] == []
        assert self.hits

    def _live(self, **job: Any) -> Outcome:
        with tally.trying(self._fault):
            outcome = self._trainers.run(self.run, **job)
            print(job, outcome)
            assert outcome.status == 0 or outcome.was_killed, f"the trainer ended with {outcome.status}"
            assert set(outcome.forked) <= {0}, f"children ended with {outcome.forked}"
            if outcome.recovered is not None:
                assert outcome.recovered >= self.committed, f"{self.committed} was committed, {outcome.recovered} came back"
                self.committed = outcome.committed
        if outcome.recovered is not None and self._hit_before:
            tally.note(self._fault, 0, seconds=outcome.seconds)
        self._hit_before = self._was_hit(outcome)
        self.hits += self._hit_before
        tally.note(self._fault, int(self._hit_before))
        return outcome


@contextmanager
def small_disk(kind: str, folder: Path) -> Iterator[Path]:
    """A disk of 48 MiB."""
    size, point = 48 * MIB, folder / "disk"
    made = (
        disks.memory_disk(point, size) if kind == "tmpfs" else disks.mounted(disks.make_ext4(folder / "disk.img", size), point)
    )
    with made:
        yield point


def empty(disk: Path) -> None:
    for ballast in disk.glob("ballast-*"):
        ballast.unlink()


@pytest.mark.sampled(1)
@pytest.mark.disks
@SEEDS
@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_disk_that_fills_up_loses_nothing(trainers: Trainers, memory_path: Path, kind: str, seed: int) -> None:
    fault = f"disk full ({kind}) in a run that is killed"
    with small_disk(kind, memory_path) as disk:
        lives = Lives(trainers, disk / "run", fault, lambda outcome: outcome.was_suspended or outcome.has_made_room, seed)
        lives.live()
        for life in range(10 * LIVES):
            if life >= LIVES and lives.hits:
                break
            if lives.chance.random() < 0.4:
                empty(disk)
            elif lives.chance.random() < 0.4:
                disks.fill(disk, leave=lives.chance.choice([0, 4096, lives.chance.randrange(3 * MIB)]))
            fills, empties = lives.chance.randrange(2, 20), lives.chance.randrange(10, 60)

            def meanwhile(lines: int, fills: int = fills, empties: int = empties) -> None:
                if lines == fills:
                    disks.fill(disk)
                elif lines == empties:
                    empty(disk)

            lives.live(meanwhile=meanwhile, ticks=True)
        empty(disk)
        lives.end()


@SEEDS
def test_forks_lose_nothing(trainers: Trainers, memory_path: Path, seed: int) -> None:
    """What a child does to the journal is in vain, and one that stays behind holds nothing."""
    fault = "forks of a trainer that is killed, its children beside it"
    lives = Lives(trainers, memory_path / "run", fault, lambda outcome: len(outcome.forked) > 0, seed)
    for _ in range(LIVES):
        lives.live(forks=lives.chance.randrange(10**6))
    lives.end()
