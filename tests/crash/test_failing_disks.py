"""A disk is full for a while, or gives errors, at random moments of a run that is killed again and again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.crash.lives import Lives
from tests.crash.toy_trainers import Outcome, Trainers
from tests.support import campaign, disks
from tranlogs.base.config import MIB

pytestmark = pytest.mark.crash

SEEDS = pytest.mark.parametrize("seed", campaign.seeds(1), ids=str)
LIVES = 10
ERRORS = (
    "log.begin",
    "log.write",
    "log.before_commit",
    "log.sync",
    "log.roll",
    "log.seal",
    "log.prepare",
    "log.recycle",
    "catalog.before_commit",
    "checkpoint.snapshot",
    "checkpoint.state",
    "checkpoint.publish",
)


def was_suspended(outcome: Outcome) -> bool:
    return outcome.was_suspended


def was_full(outcome: Outcome) -> bool:
    return outcome.was_suspended or outcome.has_made_room


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
def test_a_disk_that_fills_up_in_lives_that_are_killed_loses_nothing(
    trainers: Trainers, memory_path: Path, kind: str, seed: int
) -> None:
    print(f"repeat with TRANLOGS_SEED={seed}")
    chance = random.Random(seed)
    with small_disk(kind, memory_path) as disk:
        lives = Lives(trainers, disk / "run", f"disk full ({kind}) in a run that is killed", was_full, chance)
        lives.live()
        for life in range(10 * LIVES):
            if life >= LIVES and lives.hits:
                break
            if chance.random() < 0.4:
                empty(disk)
            elif chance.random() < 0.4:
                disks.fill(disk, leave=chance.choice([0, 4096, chance.randrange(3 * MIB)]))
            fills, empties = chance.randrange(2, 20), chance.randrange(10, 60)

            def meanwhile(lines: int, fills: int = fills, empties: int = empties) -> None:
                if lines == fills:
                    disks.fill(disk)
                elif lines == empties:
                    empty(disk)

            lives.live(meanwhile=meanwhile, ticks=True)
        empty(disk)
        lives.end()
    assert lives.hits


@SEEDS
def test_errors_anywhere_in_lives_that_are_killed_lose_nothing(trainers: Trainers, memory_path: Path, seed: int) -> None:
    print(f"repeat with TRANLOGS_SEED={seed}")
    chance = random.Random(seed)
    lives = Lives(
        trainers, memory_path / "run", "I/O errors that suspend logging, in a run that is killed", was_suspended, chance
    )
    for _ in range(2 * LIVES):
        points = chance.sample(ERRORS, chance.randrange(1, 4))
        errors = [f"{point}=eio@{chance.randrange(1, 12)}{chance.choice(['', '+'])}" for point in points]
        lives.live(errors=",".join(errors), ticks=True)
    lives.end()
    assert lives.hits
