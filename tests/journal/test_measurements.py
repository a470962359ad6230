"""What a run measures about itself, and how often it fails, is in its catalog and lasts over its processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.clock import FakeClock
from tests.support.toy import ToyTrainer, open_toy
from tests.support.toy_steps import SIZES, killed
from tranlogs.catalog import MeasuredRow
from tranlogs.recovery.journal_facts import read_catalog
from tranlogs.retention import Automatic, EverySteps


def train(run: Path, until: int, clock: FakeClock, seconds: float = 1.0, policy: Any = None) -> ToyTrainer:
    """Train on, a step in so many seconds; the run is left open."""
    trainer = open_toy(run, sizes=SIZES, clock=clock, policy=policy or EverySteps(10))
    trainer.recover()

    def pass_time(_: int) -> None:
        trainer.journal.wait_checkpoint()
        clock.advance(seconds)

    trainer.train(until, say=pass_time)
    assert trainer.journal.wait_synced()
    return trainer


def measured(run: Path) -> MeasuredRow:
    row = read_catalog(run / "rank0").measured
    assert row is not None
    return row


def test_steps_bytes_and_checkpoints_are_measured(tmp_path: Path) -> None:
    clock = FakeClock(1e9)
    trainer = train(tmp_path, 25, clock, seconds=2.0)
    trainer.journal.recovery_speed.observe_replay(0.5)
    trainer.journal.recovery_speed.observe_load(0.25)
    trainer.journal.close()
    row = measured(tmp_path)
    # The last interval had 10 steps; the clock stands still while the first one is taken.
    assert row.step_seconds == pytest.approx(2.0, rel=0.15)
    assert row.interval_seconds == pytest.approx(20.0, rel=0.15)
    assert row.step_bytes == pytest.approx(8 * sum(SIZES), rel=0.05)
    assert (row.tensors, row.redo_seconds, row.is_redo_measured, row.load_seconds) == ("gradients", 0.5, True, 0.25)
    assert (row.mtbf_seconds, row.failures, row.trained_seconds, row.since) == (0.0, 0, 0.0, 1e9)


def test_a_process_that_did_not_come_to_its_end_is_a_failure(tmp_path: Path) -> None:
    clock, run = FakeClock(1e9), tmp_path / "0"
    first = train(run, 12, clock, 10.0)
    left = killed(first, tmp_path / "1")
    first.journal.close()
    clock.advance(86_400)  # the machine was off
    second = train(left, 20, clock, 10.0)
    # Time after the last group is not known: one step at most.
    assert second.journal.checkpoints.measurements.row.failures == 1
    assert second.journal.checkpoints.measurements.row.trained_seconds == pytest.approx(110.0, abs=10.0)
    assert second.journal.checkpoints.measurements.mtbf_seconds == pytest.approx((3600 + 110 + 80) / 2, abs=10.0)
    second.journal.note_finished("complete")
    second.journal.close()
    third = train(left, 21, clock)
    assert third.journal.checkpoints.measurements.row.failures == 1, "it came to its end"
    assert third.journal.checkpoints.measurements.row.trained_seconds == pytest.approx(190.0, abs=20.0)
    third.journal.close()
    assert measured(left).failures == 1


def test_a_process_that_has_not_trained_hides_no_failure_and_is_none(tmp_path: Path) -> None:
    clock = FakeClock(1e9)
    first = train(tmp_path / "0", 12, clock)
    left = killed(first, tmp_path / "1")
    first.journal.close()
    open_toy(left, sizes=SIZES, clock=clock).journal.close()
    again = train(left, 13, clock)
    assert again.journal.checkpoints.measurements.row.failures == 1
    again.journal.close()


def test_what_a_checkpoint_costs_is_known_after_a_restart(tmp_path: Path) -> None:
    """The next process does not take one at its first boundary in order to know that."""
    clock = FakeClock(1e9)
    trainer = train(tmp_path, 12, clock, policy=Automatic(60.0))
    trainer.journal.checkpoints.measurements.note(stall_seconds=2.0, writing_seconds=4.0)
    trainer.journal.close()
    assert (measured(tmp_path).stall_seconds, measured(tmp_path).mtbf_seconds) == (2.0, 60.0)
    again = open_toy(tmp_path, sizes=SIZES, clock=clock, policy=Automatic(60.0))
    schedule, speed = again.journal.checkpoints.schedule, again.journal.recovery_speed
    again.recover()
    again.journal.start()
    start = again.journal.step
    schedule.note_taken(start, 0)
    clock.advance(21.9)  # sqrt(2 * (2 + 4 / 2) * 60)
    assert not schedule.is_due(start + 1, 0, speed)
    clock.advance(0.1)
    assert schedule.is_due(start + 1, 0, speed)
    again.journal.close()
