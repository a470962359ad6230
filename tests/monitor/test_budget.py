"""What goes: cases by hand, and for any catalog that protected data stay and the budget is met where it can be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.monitor.test_decay import checkpoint, segment
from tranlogs.base.errors import UsageError
from tranlogs.catalog import CheckpointRow, SegmentRow, TimelineRow
from tranlogs.catalog.lineage import is_on_lineage
from tranlogs.retention.prune import Budget, bytes_on_disk, is_protected, plan_pruning, trace_newest_lineage

ONE = [TimelineRow(1)]
SEGMENTS = [segment(i, i * 10.0) for i in range(1, 7)]  # steps 1 to 60, 1000 bytes each
CHECKPOINTS = [checkpoint(0, 0.0), checkpoint(20, 21.0), checkpoint(40, 41.0)]  # 500 bytes each
VALUES = {1: 0.5, 2: 0.1, 3: 0.3, 4: 0.2, 5: 0.05, 6: 1.0}


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


def names(found: Any) -> tuple[list[int], list[int]]:
    return [row.ordinal for row in found.segments], [row.step for row in found.checkpoints]


def test_under_the_high_watermark_nothing_goes() -> None:
    found = plan(Budget(8000))
    assert names(found) == ([], [])
    assert (found.bytes_before, found.bytes_after, found.wants_checkpoint) == (7500, 7500, False)


def test_above_it_the_least_valuable_go_until_under_the_low_one() -> None:
    """7500 bytes of 7000: to 5600 at most. 5 is worth least, and protected."""
    found = plan(Budget(7000))
    assert names(found) == ([2, 4], [])
    assert found.bytes_after == 5500
    assert "its value is 0.100" in found.reasons["2.seg"]


def test_older_checkpoints_go_after_all_segments_that_may() -> None:
    found = plan(Budget(3000, low=0.5))
    assert names(found) == ([2, 4, 3, 1], [0, 20])
    assert (found.bytes_after, found.wants_checkpoint) == (2500, False)


def test_with_protected_data_alone_a_checkpoint_is_wanted() -> None:
    found = plan(Budget(2000))
    assert names(found) == ([2, 4, 3, 1], [0, 20])
    assert (found.bytes_after, found.wants_checkpoint) == (2500, True)


def test_without_a_sound_checkpoint_nothing_goes() -> None:
    found = plan(Budget(100, age_seconds_max=0, segments_max=0, checkpoints_max=1), anchor=None)
    assert names(found) == ([], [])
    assert found.wants_checkpoint


def test_a_checkpoint_that_is_not_known_to_be_sound_stays_and_protects_nothing() -> None:
    found = plan(Budget(100), anchor=CHECKPOINTS[1])
    assert names(found) == ([2, 1], [0])


def test_retired_files_count_as_going() -> None:
    rows = [replace(SEGMENTS[0], state="retired"), *SEGMENTS[1:]]
    assert names(plan(Budget(7000), segments=rows)) == ([], [])


@pytest.mark.parametrize(
    ("budget", "goes"),
    [
        (Budget(age_seconds_max=75.0), ([1, 2], [0, 20])),  # older than 25; the checkpoint of step 40 is the anchor
        (Budget(age_seconds_max=0.0), ([1, 2, 3, 4], [0, 20])),
        (Budget(segments_max=4), ([2, 4], [])),
        (Budget(segments_max=0), ([1, 2, 3, 4], [])),
        (Budget(checkpoints_max=2), ([], [0])),
        (Budget(checkpoints_max=1), ([], [0, 20])),
        (Budget(age_seconds_max=85.0, segments_max=4, checkpoints_max=2), ([1, 2], [0])),
    ],
)
def test_rules_on_age_and_number(budget: Budget, goes: tuple[list[int], list[int]]) -> None:
    found = names(plan(budget))
    assert (sorted(found[0]), found[1]) == goes


def test_what_a_rewind_left_behind_is_not_protected() -> None:
    """Timeline 2 leaves timeline 1 behind step 25 (in segment 3); the checkpoint of step 40 is of a lost history."""
    lines = [TimelineRow(1), TimelineRow(2, 1, 50, 25)]
    after = replace(segment(7, 90.0), timeline=2, base_sequence=50, base_step=25, last_sequence=60, last_step=30)
    rows = [*SEGMENTS, after]
    found = plan(Budget(100), segments=rows, timelines=lines, anchor=CHECKPOINTS[1])
    assert sorted(names(found)[0]) == [1, 2, 4, 5, 6], "segment 3 holds what came before the fork"
    assert names(found)[1] == [40, 0]


@pytest.mark.parametrize(
    "wrong", [{"nbytes": 0}, {"low": 0.9, "high": 0.5}, {"high": 1.5}, {"checkpoints_max": 0}, {"age_seconds_max": -1.0}]
)
def test_wrong_limits_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Budget(**wrong)


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
    values = {i: draw(st.floats(0, 1)) for i in range(1, count + 1)}
    return {
        "segments": segments,
        "checkpoints": checkpoints,
        "timelines": lines,
        "anchor": anchor,
        "values": values,
        "now": 1000.0,
    }


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
