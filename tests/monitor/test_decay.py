"""Values against tables computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tranlogs.base.errors import UsageError
from tranlogs.catalog import CheckpointRow, SegmentRow, Watermarks
from tranlogs.retention.value_decay import LIFE_SECONDS_UNKNOWN, Decay, SegmentValues, estimate_life_seconds, evaluate

PLAIN = Decay(100.0, covered=0.5, newer=0.125, archived=0.25, persisted=0.0625)
NOTHING = Watermarks()


def segment(ordinal: int, sealed_at: float) -> SegmentRow:
    """Each holds ten steps."""
    return SegmentRow(
        ordinal,
        f"{ordinal:016x}",
        f"{ordinal}.seg",
        1000,
        "sealed",
        1,
        (ordinal - 1) * 20,
        (ordinal - 1) * 10,
        ordinal * 20,
        ordinal * 10,
        900,
        sealed_at,
    )


def checkpoint(step: int, at: float) -> CheckpointRow:
    return CheckpointRow(f"step-{step}", step, step * 2, "00", 1, 500, at)


def values(worth: SegmentValues) -> dict[int, float]:
    return worth.as_dict()


def test_a_value_falls_by_the_share_of_its_life_that_has_passed() -> None:
    """u_1 = 1 - 25/100; u_2 = u_1 - 50/100 * u_1; u_3 = u_2 - 10/100 * u_2."""
    rows = [segment(1, 0.0)]
    first = evaluate(PLAIN, rows, [], NOTHING, None, 25.0)
    second = evaluate(PLAIN, rows, [], NOTHING, first, 75.0)
    third = evaluate(PLAIN, rows, [], NOTHING, second, 85.0)
    assert [values(worth)[1] for worth in (first, second, third)] == [0.75, 0.375, 0.375 - 0.1 * 0.375]


def test_each_event_takes_its_alpha_once() -> None:
    """Newer segments, a checkpoint that covers, the store: each is counted in the evaluation after it, and never again."""
    rows = [segment(1, 0.0), segment(2, 0.0)]
    first = evaluate(PLAIN, rows, [], NOTHING, None, 0.0)
    assert values(first) == {1: 1 - 0.125, 2: 1.0}
    rows.append(segment(3, 5.0))
    second = evaluate(PLAIN, rows, [checkpoint(10, 4.0)], replace(NOTHING, archived=20), first, 5.0)
    assert values(second) == {
        1: max(0.0, 0.875 + (-0.05 * 0.875 - (0.125 + 0.5 + 0.25))),  # one newer, covered, archived
        2: 1.0 + (-0.05 - (0.125 + 0.25)),
        3: 1.0,
    }
    third = evaluate(PLAIN, rows, [checkpoint(10, 4.0)], replace(NOTHING, archived=20, persisted=10), second, 5.0)
    assert values(third) == {1: 0.0, 2: values(second)[2], 3: 1.0}
    fourth = evaluate(PLAIN, rows, [checkpoint(10, 4.0)], replace(NOTHING, archived=20, persisted=20), third, 5.0)
    assert values(fourth) == {1: 0.0, 2: values(second)[2] - 0.0625, 3: 1.0}


def test_a_segment_that_was_sealed_since_counts_what_came_after_it_only() -> None:
    first = evaluate(PLAIN, [segment(1, 0.0)], [], NOTHING, None, 0.0)
    rows = [segment(1, 0.0), segment(2, 30.0), segment(3, 40.0)]
    second = evaluate(PLAIN, rows, [checkpoint(30, 35.0)], NOTHING, first, 50.0)
    assert values(second) == {
        1: max(0.0, 1 + (-0.5 - 2 * 0.125 - 0.5)),
        2: 1 + (-0.2 - (0.125 + 0.5)),
        3: 1 + -0.1,  # the checkpoint is older than it
    }


def test_a_value_is_never_below_nothing_nor_comes_back() -> None:
    rows = [segment(1, 0.0)]
    gone = evaluate(PLAIN, rows, [], NOTHING, None, 1000.0)
    assert values(gone) == {1: 0.0}
    assert values(evaluate(PLAIN, rows, [], NOTHING, gone, 1001.0)) == {1: 0.0}


def test_a_clock_that_was_set_back_makes_nothing_worth_more() -> None:
    rows = [segment(1, 500.0)]
    first = evaluate(PLAIN, rows, [], NOTHING, None, 510.0)
    again = evaluate(PLAIN, rows, [], NOTHING, first, 100.0)
    assert values(again) == values(first) == {1: 0.9}


def test_open_and_retired_segments_have_no_value() -> None:
    rows = [replace(segment(1, 0.0), state="retired"), segment(2, 0.0), replace(segment(3, 0.0), state="open")]
    worth = evaluate(PLAIN, rows, [], NOTHING, None, 0.0)
    assert values(worth) == {2: 1.0}
    assert (worth.get(2), worth.get(1), worth.get(3)) == (1.0, None, None)


def test_the_life_of_a_log_is_the_median_interval_between_checkpoints() -> None:
    at = [0.0, 10.0, 30.0, 40.0]
    assert estimate_life_seconds(Decay(), [checkpoint(i + 1, t) for i, t in enumerate(at)]) == 10.0
    assert estimate_life_seconds(Decay(), [checkpoint(1, 0.0)]) == LIFE_SECONDS_UNKNOWN
    assert estimate_life_seconds(Decay(7.0), [checkpoint(1, 0.0)]) == 7.0


def test_frequent_evaluations_tend_to_an_exponential() -> None:
    """How often the monitor looks hardly matters."""
    rows, ends = [segment(1, 0.0)], []
    for looks in (1000, 10_000):
        worth = None
        for i in range(1, looks + 1):
            worth = evaluate(PLAIN, rows, [], NOTHING, worth, 100.0 * i / looks)
        assert worth is not None
        ends.append(values(worth)[1])
    assert ends == pytest.approx([math.exp(-1)] * 2, rel=1e-3)


@pytest.mark.parametrize("wrong", [{"life_seconds": 0.0}, {"life_seconds": -1.0}, {"covered": 1.5}, {"newer": -0.1}])
def test_wrong_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Decay(**wrong)
