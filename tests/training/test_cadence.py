"""Which boundaries are recorded where no tensors are logged."""

from __future__ import annotations

import pytest

from tranlogs.log.record_format import COVERED_MAX
from tranlogs.training import cadence
from tranlogs.training.cadence import Cadence


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
    for cost in (0.3, 0.01, 0.02):  # the first one took a checkpoint, too
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
