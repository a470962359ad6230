"""When all bytes are looked at for writes that leave no trace, what a run says it writes, and which boundaries are recorded
where no tensors are logged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tranlogs.base.config import GIB, MIB
from tranlogs.log.record_format import COVERED_MAX
from tranlogs.retention import Automatic, EveryBytes, EverySeconds, EverySteps, KeepAll, KeepLatest, RecoveryTime
from tranlogs.training import ExpectedWrites, cadence, forecast_trial, forecast_writes, write_forecast
from tranlogs.training.cadence import Cadence
from tranlogs.training.write_forecast import FIRST_UNITS, ScanSchedule

DEAR, STEP = 0.0005, 0.01  # seconds: a look costs a twentieth of a step


def after(looks: ScanSchedule, units: int) -> list[int]:
    """Go on for some units; those at whose boundaries a full look was taken, counted from now."""
    full = []
    for unit in range(units):
        looks.count_unit()
        if looks.is_full_scan_due("at a boundary", DEAR, STEP):
            full.append(unit)
    return full


def test_the_first_looks_are_full_and_later_ones_cost_a_share() -> None:
    looks = ScanSchedule()
    assert after(looks, FIRST_UNITS - 1) == list(range(FIRST_UNITS - 1))
    assert after(looks, 100) == [9, 19, 29, 39, 49, 59, 69, 79, 89, 99]
    for _ in range(20):  # a cheap look is always full
        looks.count_unit()
        assert looks.is_full_scan_due("before a step", 10e-6, STEP)
        assert looks.is_full_scan_due("at a boundary", 0.0045 * STEP, STEP)


@pytest.mark.parametrize(
    ("units", "more", "is_old"),
    [(10, 0, False), (FIRST_UNITS - 1 + 20, 10, True), (FIRST_UNITS - 1 + 24, 0, True)],
    ids=["in the unit after a full look", "by a rare look", "by a partial look"],
)
def test_a_place_where_a_write_was_found_is_looked_at_each_time(units: int, more: int, is_old: bool) -> None:
    """What a rare or a partial look finds may be older than the last unit."""
    looks = ScanSchedule()
    after(looks, units)
    after(looks, more)
    assert looks.note_write("at a boundary") is is_old
    assert after(looks, 30) == list(range(30))
    assert not looks.note_write("at a boundary")


class Mine:
    def is_due(self, facts: Any) -> bool:
        return False


@pytest.mark.parametrize(
    ("policy", "more", "says"),
    [
        (Automatic(), {}, "next checkpoint when it saves more than it costs, after at most 511 steps (512.0 MiB of log)"),
        (
            Automatic(),
            {"at_epoch_ends": True},
            "next checkpoint at the end of the epoch, or when it saves more than it costs, after at most 511 steps "
            "(512.0 MiB of log)",
        ),
        (EveryBytes(10 * MIB), {}, "next checkpoint after about 9 steps (9.0 MiB of log)"),
        (EveryBytes(1), {}, "next checkpoint after about 1 step (1.0 MiB of log)"),
        (EverySteps(1500), {}, "next checkpoint after 1,500 steps (1.5 GiB of log)"),
        (EverySeconds(600), {}, "next checkpoint after 10.0 min"),
        (RecoveryTime(30), {}, "next checkpoint when a recovery would take 30 s"),
        (Mine(), {}, "next checkpoint when Mine says so"),
    ],
)
def test_a_run_says_what_it_writes_and_when_its_next_checkpoint_comes(
    policy: Any, more: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_forecast, "free_bytes", lambda path: 8 * GIB)
    expected = ExpectedWrites(MIB, 3 * MIB, **more)
    assert forecast_writes(policy, tmp_path, expected) == f"about 1.0 MiB of log a step; {says}"


def test_a_run_whose_log_is_small_beside_the_free_disk_speaks_of_neither_its_bound_nor_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_forecast, "free_bytes", lambda path: 64 * GIB)
    tiny = ExpectedWrites(5 * 1024, 16 * 1024, MIB)
    said = forecast_writes(Automatic(), tmp_path, tiny, KeepLatest(2))
    assert said == "about 7.0 KiB of log a step; next checkpoint when it saves more than it costs"
    said = forecast_writes(EverySteps(500), tmp_path, tiny, KeepLatest(2))
    assert said == "about 7.0 KiB of log a step; next checkpoint after 500 steps (3.4 MiB of log)"
    said = forecast_trial(Automatic(), 5 * 1024, 0.05, at_epoch_ends=True)
    assert said == (
        "the first steps measure whether a log of about 7.0 KiB costs more than 5 % of a step; "
        "checkpoints: at the end of each epoch, and each when it saves more than it costs"
    )


@pytest.mark.parametrize(
    ("retention", "says"),
    [
        (KeepLatest(2), "; at most about 122.2 MiB on disk without crashes, 768.0 MiB are free"),
        (KeepLatest(1), "; at most about 72.1 MiB on disk without crashes, 768.0 MiB are free"),
        (KeepAll(), " of log)"),
    ],
)
def test_a_run_says_how_much_disk_space_it_takes_where_that_is_bounded(
    retention: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_forecast, "free_bytes", lambda path: 768 * MIB)  # a sixteenth of it: 48 MiB
    said = forecast_writes(Automatic(), tmp_path, ExpectedWrites(MIB, 3 * MIB, 3 * MIB), retention)
    assert said.endswith(says), said


class Time:
    """The time that a Cadence sees."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(cadence.time, "perf_counter", lambda: self.now)

    def record(self, recorded: Cadence, seconds: float) -> None:
        """Record a boundary, which takes some seconds."""
        began = self.now
        self.now += seconds
        recorded.note(began)


def test_a_boundary_is_recorded_after_50_ms_or_200_times_what_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    time, recorded = Time(monkeypatch), Cadence()
    assert recorded.is_due(1)
    for cost, pause in ((0.0001, 0.05), (0.001, 0.05), (0.0001, 0.05)):
        time.record(recorded, cost)
        time.now += pause - 0.001
        assert not recorded.is_due(1)
        time.now += 0.002
        assert recorded.is_due(1)
        assert not recorded.is_due(0), "no step was taken since the last record"
    expensive = Cadence()
    for cost in (0.3, 0.01, 0.02, 0.05):  # the first one took a checkpoint, too
        time.record(expensive, cost)
    time.now += 1.999
    assert not expensive.is_due(1)
    time.now += 0.002
    assert expensive.is_due(1)


def test_the_end_of_a_loop_is_recorded_and_a_record_never_covers_more_steps_than_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time, recorded = Time(monkeypatch), Cadence()
    time.record(recorded, 0.001)
    assert not recorded.is_due(COVERED_MAX // 2 - 1)
    assert recorded.is_due(COVERED_MAX // 2)
    recorded.demand()
    assert recorded.is_due(1)
