"""What a segment is worth, and what goes: tables by hand, and for any catalog that protected data stay and the budget is met
where it can be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranlogs.base.errors import UsageError
from tranlogs.catalog import CheckpointRow, SegmentRow, TimelineRow, Watermarks
from tranlogs.catalog.rows import is_on_lineage
from tranlogs.retention.prune import Budget, bytes_on_disk, is_protected, plan_pruning, trace_newest_lineage
from tranlogs.retention.value_decay import LIFE_SECONDS_UNKNOWN, Decay, SegmentValues, estimate_life_seconds, evaluate

PLAIN = Decay(100.0, covered=0.5, newer=0.125, archived=0.25, persisted=0.0625)
NOTHING = Watermarks()


def segment(ordinal: int, sealed_at: float) -> SegmentRow:
    """Each holds ten steps, of two records each."""
    first, last = (ordinal - 1) * 10, ordinal * 10
    file, state = f"{ordinal}.seg", "sealed"
    return SegmentRow(ordinal, f"{ordinal:016x}", file, 1000, state, 1, 2 * first, first, 2 * last, last, 900, sealed_at)


def checkpoint(step: int, at: float) -> CheckpointRow:
    return CheckpointRow(f"step-{step}", step, step * 2, "00", 1, 500, at)


def values(worth: SegmentValues) -> dict[int, float]:
    return worth.as_dict()


def test_a_value_falls_by_the_share_of_its_life_that_has_passed() -> None:
    """u_1 = 1 - 25/100; u_2 = u_1 - 50/100 * u_1; u_3 = u_2 - 10/100 * u_2."""
    rows, worth, found = [segment(1, 0.0)], None, []
    for now in (25.0, 75.0, 85.0, 50.0, 1000.0, 1001.0):  # a clock that was set back makes nothing worth more
        worth = evaluate(PLAIN, rows, [], NOTHING, worth, now)
        found.append(values(worth)[1])
    assert found == [0.75, 0.375, 0.3375, 0.3375, 0.0, 0.0]


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


def test_the_life_of_a_log_is_the_median_interval_between_checkpoints() -> None:
    at = [0.0, 10.0, 30.0, 40.0]
    assert estimate_life_seconds(Decay(), [checkpoint(i + 1, t) for i, t in enumerate(at)]) == 10.0
    assert estimate_life_seconds(Decay(), [checkpoint(1, 0.0)]) == LIFE_SECONDS_UNKNOWN
    assert estimate_life_seconds(Decay(7.0), [checkpoint(1, 0.0)]) == 7.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Decay(life_seconds=0.0),
        lambda: Decay(covered=1.5),
        lambda: Budget(nbytes=0),
        lambda: Budget(low=0.9, high=0.5),
        lambda: Budget(checkpoints_max=0),
        lambda: Budget(age_seconds_max=-1.0),
    ],
)
def test_wrong_settings_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(UsageError):
        make()


# What goes. Six segments of 1000 bytes up to step 60, three checkpoints of 500.

ONE = [TimelineRow(1)]
SEGMENTS = [segment(i, i * 10.0) for i in range(1, 7)]
CHECKPOINTS = [checkpoint(0, 0.0), checkpoint(20, 21.0), checkpoint(40, 41.0)]
VALUES = {1: 0.5, 2: 0.1, 3: 0.3, 4: 0.2, 5: 0.05, 6: 1.0}
FIRST_RETIRED = [replace(SEGMENTS[0], state="retired"), *SEGMENTS[1:]]


def plan(budget: Budget, **changes: Any) -> Any:
    given_ = {
        "segments": SEGMENTS,
        "checkpoints": CHECKPOINTS,
        "timelines": ONE,
        "values": VALUES,
        "anchor": CHECKPOINTS[-1],
        "now": 100.0,
    } | changes
    return plan_pruning(budget, **given_)


@pytest.mark.parametrize(
    ("budget", "changes", "segments", "checkpoints", "bytes_after", "wants_checkpoint"),
    [
        (Budget(8000), {}, [], [], 7500, False),  # under the high watermark
        # Above it the least valuable go until under the low one: 5600. Segment 5 is worth least, and protected.
        (Budget(7000), {}, [2, 4], [], 5500, False),
        (Budget(3000, low=0.5), {}, [2, 4, 3, 1], [0, 20], 2500, False),  # checkpoints after all segments that may
        (Budget(2000), {}, [2, 4, 3, 1], [0, 20], 2500, True),  # protected data alone
        # Without a sound checkpoint nothing goes, and one that is not known to be sound protects nothing.
        (Budget(100, age_seconds_max=0, segments_max=0, checkpoints_max=1), {"anchor": None}, [], [], 7500, True),
        (Budget(100), {"anchor": CHECKPOINTS[1]}, [2, 1], [0], 5000, True),
        (Budget(7000), {"segments": FIRST_RETIRED}, [], [], 6500, False),  # it counts as going
        (Budget(age_seconds_max=75.0), {}, [1, 2], [0, 20], 4500, False),  # older than 25; step 40 is the anchor
        (Budget(age_seconds_max=0.0), {}, [1, 2, 3, 4], [0, 20], 2500, False),
        (Budget(segments_max=4), {}, [2, 4], [], 5500, False),
        (Budget(segments_max=0), {}, [2, 4, 3, 1], [], 3500, False),
        (Budget(checkpoints_max=2), {}, [], [0], 7000, False),
        (Budget(checkpoints_max=1), {}, [], [0, 20], 6500, False),
        (Budget(age_seconds_max=85.0, segments_max=4, checkpoints_max=2), {}, [1, 2], [0], 5000, False),
    ],
)
def test_what_goes(
    budget: Budget,
    changes: dict[str, Any],
    segments: list[int],
    checkpoints: list[int],
    bytes_after: int,
    wants_checkpoint: bool,
) -> None:
    found = plan(budget, **changes)
    order = [row.ordinal for row in found.segments]
    assert sorted(order) == sorted(segments)
    assert budget.nbytes is None or order == segments, "the least valuable first"
    assert [row.step for row in found.checkpoints] == checkpoints
    assert (found.bytes_after, found.wants_checkpoint) == (bytes_after, wants_checkpoint)
    assert budget != Budget(7000) or changes or "its value is 0.100" in found.reasons["2.seg"]


def test_what_a_rewind_left_behind_is_not_protected() -> None:
    """Timeline 2 leaves timeline 1 behind step 25 (in segment 3); the checkpoint of step 40 is of a lost history."""
    lines = [TimelineRow(1), TimelineRow(2, 1, 50, 25)]
    after = replace(segment(7, 90.0), timeline=2, base_sequence=50, base_step=25, last_sequence=60, last_step=30)
    found = plan(Budget(100), segments=[*SEGMENTS, after], timelines=lines, anchor=CHECKPOINTS[1])
    assert sorted(row.ordinal for row in found.segments) == [1, 2, 4, 5, 6], "segment 3 holds what came before the fork"
    assert [row.step for row in found.checkpoints] == [40, 0]


@st.composite
def catalogs(draw: st.DrawFn) -> dict[str, Any]:
    """A log of some segments with checkpoints in it, perhaps on two timelines."""
    count = draw(st.integers(0, 12))
    segments = [
        replace(
            segment(i, float(i)),
            size=draw(st.integers(1, 5)) * 1000,
            state=draw(st.sampled_from(["sealed", "sealed", "sealed", "retired"])),
        )
        for i in range(1, count + 1)
    ]
    segments += [replace(segment(count + 1, 0.0), state="open", last_sequence=0, last_step=0)]
    steps = draw(st.lists(st.integers(0, 10 * count), max_size=5, unique=True))
    checkpoints = [replace(checkpoint(step, float(step)), nbytes=draw(st.integers(1, 3000))) for step in sorted(steps)]
    lines = [TimelineRow(1)]
    if count and draw(st.booleans()):
        lines.append(TimelineRow(2, 1, draw(st.integers(0, 20 * count))))
    limits = trace_newest_lineage(checkpoints, lines)
    on = [row for row in checkpoints if is_on_lineage(row, limits)]
    anchor = draw(st.sampled_from([None, *on]))
    worth = {i: draw(st.floats(0, 1)) for i in range(1, count + 1)}
    found = {"segments": segments, "checkpoints": checkpoints, "timelines": lines}
    return found | {"anchor": anchor, "values": worth, "now": 1000.0}


@st.composite
def budgets(draw: st.DrawFn) -> Budget:
    high = draw(st.floats(0.1, 1.0))
    return Budget(
        draw(st.none() | st.integers(1, 80_000)),
        high,
        draw(st.floats(0.05, 1.0)) * high,
        draw(st.none() | st.floats(0, 2000)),
        draw(st.none() | st.integers(0, 12)),
        draw(st.none() | st.integers(1, 5)),
    )


def needed(rows: list[SegmentRow], anchor: CheckpointRow, lines: list[TimelineRow]) -> set[int]:
    """Written apart from the product: segments with an entry behind the anchor on the way to the newest timeline."""
    fork = lines[1].fork_sequence if len(lines) > 1 else None
    found = set()
    for row in rows:
        if row.state == "retired":
            continue
        entries = range(row.base_sequence + 1, row.last_sequence + 1)
        if row.state == "open" or any(e > anchor.sequence and (fork is None or e <= fork) for e in entries):
            found.add(row.ordinal)
    return found


@given(catalogs(), budgets())
def test_any_plan_keeps_what_recovery_needs_and_meets_the_budget_where_it_can(catalog: dict[str, Any], budget: Budget) -> None:
    found = plan_pruning(budget, **catalog)
    segments, checkpoints, anchor = catalog["segments"], catalog["checkpoints"], catalog["anchor"]
    gone = {row.ordinal for row in found.segments}
    if anchor is None:
        assert not gone
        assert not found.checkpoints
    else:
        assert not gone & needed(segments, anchor, catalog["timelines"])
        assert anchor not in found.checkpoints
    assert all(row.state == "sealed" for row in found.segments)
    left = [row for row in segments if row.ordinal not in gone and row.state != "retired"]
    left_checkpoints = [row for row in checkpoints if row not in found.checkpoints]
    assert found.reasons.keys() == {row.file for row in found.segments} | {row.name for row in found.checkpoints}
    assert found.bytes_after == bytes_on_disk(left, left_checkpoints)
    if budget.nbytes is not None:
        limits = trace_newest_lineage(checkpoints, catalog["timelines"])
        stuck = all(is_protected(row, anchor, limits) for row in left) and all(
            anchor is None or (is_on_lineage(row, limits) and row.sequence >= anchor.sequence) for row in left_checkpoints
        )
        assert found.bytes_after <= budget.high * budget.nbytes or stuck, "something that may go was left"
        assert found.wants_checkpoint == (found.bytes_after > budget.high * budget.nbytes)
    if budget.nbytes is None and budget.age_seconds_max is None and budget.segments_max is None:
        assert not gone


def test_a_segment_that_was_sealed_since_counts_what_came_after_it_only() -> None:
    first = evaluate(PLAIN, [segment(1, 0.0)], [], NOTHING, None, 0.0)
    rows = [segment(1, 0.0), segment(2, 30.0), segment(3, 40.0)]
    second = evaluate(PLAIN, rows, [checkpoint(30, 35.0)], NOTHING, first, 50.0)
    assert values(second) == {
        1: max(0.0, 1 + (-0.5 - 2 * 0.125 - 0.5)),
        2: 1 + (-0.2 - (0.125 + 0.5)),
        3: 1 + -0.1,  # the checkpoint is older than it
    }


def test_open_and_retired_segments_have_no_value() -> None:
    rows = [replace(segment(1, 0.0), state="retired"), segment(2, 0.0), replace(segment(3, 0.0), state="open")]
    assert values(evaluate(PLAIN, rows, [], NOTHING, None, 0.0)) == {2: 1.0}
