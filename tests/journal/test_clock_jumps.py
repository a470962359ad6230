"""The machine's clock jumps back and forth by hours: nothing that decides looks at it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.clock import FakeClock
from tests.support.toy import ToyTrainer, open_toy
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.catalog import Catalog
from tranlogs.retention import CheckpointPolicy, EverySeconds, EverySteps, KeepLatest

SIZES = (7, 300)
HOUR = 3600.0


class JumpingClock(FakeClock):
    """The time of day is another one each time that somebody looks."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    def now(self) -> float:
        return 1_700_000_000.0 + self._chance.uniform(-48, 48) * HOUR


@pytest.fixture
def clock() -> JumpingClock:
    seed = random.randrange(10**6)
    print("seed", seed)
    return JumpingClock(random.Random(seed))


def open_run(run: Path, clock: FakeClock, policy: CheckpointPolicy, *, age: float | None = None, keep: int = 2) -> ToyTrainer:
    config = JournalConfig(durability="process", segment_bytes=MIB, segment_age_seconds=age)
    return open_toy(run, sizes=SIZES, config=config, policy=policy, retention=KeepLatest(keep), clock=clock)


def ticking(trainer: ToyTrainer, clock: FakeClock, seconds: float = 10.0) -> Callable[[int], None]:
    def tick(_: int) -> None:
        clock.advance(seconds)
        trainer.journal.wait_checkpoint()

    return tick


def test_checkpoints_by_time_come_when_the_time_has_passed(memory_path: Path, clock: JumpingClock) -> None:
    taken = []
    for name, used in (("jumping", clock), ("steady", FakeClock())):
        trainer = open_run(memory_path / name, used, EverySeconds(45), keep=100)
        trainer.recover()
        trainer.train(50, ticking(trainer, used))
        taken.append([row.step for row in trainer.journal.catalog.checkpoints()])
        trainer.journal.close()
    assert taken[0] == taken[1]
    assert len(taken[0]) > 8


def test_segments_roll_when_they_are_old(memory_path: Path, clock: JumpingClock) -> None:
    """Where that is: at the boundary behind, or before it by the thread that seals for a trainer which is busy."""
    for name, used in (("jumping", clock), ("steady", FakeClock())):
        trainer = open_run(memory_path / name, used, EverySteps(1000), age=65.0)
        trainer.recover()
        trainer.train(40, ticking(trainer, used))
        trainer.journal.close()
        catalog = Catalog.open(memory_path / name / "rank0")
        steps = [row.last_step - row.base_step for row in catalog.segments() if row.state == "sealed"]
        catalog.close()
        assert set(steps[:-1]) <= {7, 8}
        assert sum(steps) == 40


def test_a_restart_under_another_date_takes_at_most_one_checkpoint_early(memory_path: Path, clock: JumpingClock) -> None:
    """Across a restart only the date tells how old a checkpoint is; a wrong one costs a checkpoint, or its interval."""
    for until in range(20, 80, 20):
        trainer = open_run(memory_path / "run", clock, EverySeconds(10_000), keep=100)
        trainer.recover()
        before = len(trainer.journal.catalog.checkpoints())
        trainer.train(until, ticking(trainer, clock))
        assert len(trainer.journal.catalog.checkpoints()) - before <= 1
        trainer.journal.close()
    trainer = open_run(memory_path / "run", clock, EverySeconds(10_000), keep=100)
    trainer.recover()
    before = len(trainer.journal.catalog.checkpoints())
    trainer.train(61 + 110, ticking(trainer, clock, 100.0))
    assert len(trainer.journal.catalog.checkpoints()) > before
    trainer.journal.close()
