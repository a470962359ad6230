"""What would be lost now: by watermarks, checkpoint and store."""

from __future__ import annotations

import pytest

from tranlogs.catalog import Incident, StoreRow, Watermarks
from tranlogs.retention.lost_work import estimate_lost_work, estimate_seconds_since, has_store

MARKS = Watermarks(committed=100, synced=90, archived=60, persisted=40)


def steps(marks: Watermarks, checkpoint_step: int = 0) -> list[tuple[int, int]]:
    """The newest step that is left and how many are gone, for the process, the machine and the site."""
    return [(one.safe_step, one.steps) for one in estimate_lost_work(marks, checkpoint_step=checkpoint_step)]


@pytest.mark.parametrize(
    ("marks", "checkpoint_step", "expected"),
    [
        (MARKS, 0, [(100, 0), (90, 10), (40, 60)]),
        (MARKS, 95, [(100, 0), (95, 5), (40, 60)]),  # a checkpoint is on disk whatever was synced
        (Watermarks(100, 0), 80, [(100, 0), (80, 20), (0, 100)]),  # durability="process"
        (Watermarks(100, 100, 60, 0), 0, [(100, 0), (100, 0), (60, 40)]),  # the store calls nothing durable
        (Watermarks(99, 99), 100, [(99, 0), (99, 0), (0, 99)]),  # the catalog trails the checkpoint
        (Watermarks(), 0, [(0, 0), (0, 0), (0, 0)]),
    ],
)
def test_steps_that_would_be_lost(marks: Watermarks, checkpoint_step: int, expected: list[tuple[int, int]]) -> None:
    assert steps(marks, checkpoint_step) == expected


def test_without_a_store_the_site_takes_everything() -> None:
    assert not has_store(Watermarks(100, 100))
    assert has_store(Watermarks(100, 100, 1))
    process, machine, site = estimate_lost_work(Watermarks(100, 99))
    assert process.describe() == "no finished step"
    assert machine.describe() == "1 step"
    assert site.describe() == "everything: there is no store"
    store = StoreRow("file:///there", "me")
    assert has_store(Watermarks(100, 99), store)
    assert estimate_lost_work(Watermarks(100, 99), store=store)[2].describe() == "everything: the store has no step yet"
    assert estimate_lost_work(Watermarks(100, 99, 90, 80), store=store)[2].describe() == "20 steps"


def test_a_run_in_memory_goes_with_the_machine() -> None:
    _, machine, site = estimate_lost_work(Watermarks(100, 99), checkpoint_step=50, in_memory=True)
    assert machine.describe() == "everything: the run lies in memory (tmpfs)"
    assert site.describe() == "everything: there is no store"
    assert estimate_lost_work(Watermarks(100, 99, 90, 80), in_memory=True)[1].describe() == "20 steps"


def test_seconds_are_of_training_and_not_of_waiting() -> None:
    history = [(0.0, 0), (10.0, 50), (20.0, 100), (500.0, 100)]  # nothing has been trained since 20
    _, machine, site = estimate_lost_work(MARKS, history=history)
    assert machine.seconds == pytest.approx(2.0)
    assert machine.describe() == "10 steps (about 2.0 s)"
    assert site.seconds == pytest.approx(12.0)
    assert site.describe() == "60 steps (about 12 s)"


def test_after_a_rewind_only_what_came_since_counts() -> None:
    history = [(0.0, 0), (10.0, 100), (20.0, 60), (30.0, 80)]
    assert estimate_seconds_since(history, 70) == pytest.approx(5.0)
    assert estimate_seconds_since(history, 50) is None, "the history does not reach back so far on this timeline"
    assert estimate_seconds_since([], 0) is None
    assert estimate_seconds_since([(7.0, 5)], 5) == 0.0


def test_suspended_logging_loses_more_than_can_be_counted() -> None:
    suspended = [Incident(1, "No space left on device", 100, 0.0)]
    process, machine, _ = estimate_lost_work(MARKS, incidents=suspended)
    assert process.describe() == "all steps after 100"
    assert machine.describe() == "at least 10 steps"
    over = [Incident(1, "No space left on device", 50, 0.0, 60, 1.0)]
    assert estimate_lost_work(MARKS, incidents=over)[0].describe() == "no finished step"
