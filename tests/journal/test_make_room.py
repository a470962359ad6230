"""What a full disk takes of the checkpoints: older ones make room for the next, and for the log; never the newest."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clock import FakeClock
from tests.support.faults import failing
from tests.support.toy import ToyTrainer, open_toy, uninterrupted
from tranlogs.base.config import JournalConfig
from tranlogs.retention import EverySteps, KeepAll, KeepEvery, KeepLatest, RetentionPolicy

SIZES = (7, 300)
KEEPS = [  # retention, error, and whether older checkpoints are given up
    (KeepLatest(3), "enospc", True),
    (KeepLatest(2), "enospc", True),
    (KeepLatest(3), "eio", False),
    (KeepLatest(1), "enospc", False),
    (KeepAll(), "enospc", False),
    (KeepEvery(5), "enospc", False),
]
EACH_KEEP = pytest.mark.parametrize(("keep", "error", "is_room_made"), KEEPS, ids=str)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def trainer(memory_path: Path, clock: FakeClock, request: pytest.FixtureRequest) -> Iterator[ToyTrainer]:
    keep = request.getfixturevalue("keep")
    made = open_toy(
        memory_path / "run",
        sizes=SIZES,
        policy=EverySteps(10),
        retention=keep,
        clock=clock,
        config=JournalConfig(segment_bytes=1 << 20),
    )
    made.recover()
    made.train(39, say=lambda _: made.journal.wait_checkpoint())
    yield made
    made.journal.close()


def steps(trainer: ToyTrainer) -> list[int]:
    return [row.step for row in trainer.journal.catalog.checkpoints()]


def end(trainer: ToyTrainer, keep: RetentionPolicy) -> None:
    """It goes on as usual, and what comes back is right."""
    step = trainer.journal.step
    trainer.journal.close()
    again = open_toy(trainer.journal.paths.folder.parent, sizes=SIZES, retention=keep)
    assert again.recover().step == step
    assert again.state.everything() == uninterrupted(step, sizes=SIZES).everything()
    again.journal.close()


@EACH_KEEP
def test_a_checkpoint_takes_the_place_of_older_ones(
    trainer: ToyTrainer, keep: RetentionPolicy, error: str, is_room_made: bool, caplog: pytest.LogCaptureFixture
) -> None:
    before = steps(trainer)
    with failing(f"checkpoint.state={error}@1"):
        trainer.train(41)
        trainer.journal.wait_checkpoint()
        trainer.train(42)
    assert steps(trainer) == ([30, 40] if is_room_made else before)
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 1
    assert ("only the newest checkpoint is kept" in told[0]) is is_room_made
    end(trainer, keep)


@EACH_KEEP
def test_the_log_goes_on_at_once_in_the_place_of_older_checkpoints(
    trainer: ToyTrainer, clock: FakeClock, keep: RetentionPolicy, error: str, is_room_made: bool
) -> None:
    before, journal = steps(trainer), trainer.journal
    with failing(f"log.begin={error}@1"):
        trainer.train(40)
    assert journal.is_suspended is not is_room_made
    assert (journal.committed, steps(trainer)) == ((40, [30, 40]) if is_room_made else (39, before))
    clock.advance(100)
    trainer.train(42)
    assert (journal.is_suspended, journal.committed) == (False, 42)
    assert len(journal.catalog.incidents()) == 1
    end(trainer, keep)


@pytest.mark.parametrize("keep", [KeepLatest(3)], ids=str)
def test_nothing_is_given_up_for_a_rewind_that_has_not_begun(
    trainer: ToyTrainer, clock: FakeClock, keep: RetentionPolicy
) -> None:
    """As long as the catalog does not tell where a run goes on, its newest checkpoint is not the one that this needs."""
    before = steps(trainer)
    trainer.journal.close()
    run = trainer.journal.paths.folder.parent
    again = open_toy(run, sizes=SIZES, retention=keep, clock=clock)
    assert again.recover(step=25).step == 25
    with failing("catalog.before_commit=enospc@1"):
        again.train(27)
    assert again.journal.is_suspended
    assert steps(again) == before
    clock.advance(100)
    again.train(29)
    assert (again.journal.is_suspended, again.journal.committed) == (False, 29)
    again.journal.close()
