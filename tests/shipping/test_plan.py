"""What is sent next, how far a store has come, what it gives up: tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tranlogs.catalog import CheckpointRow, SegmentRow, ShippedRow, TimelineRow
from tranlogs.retention.keep_policy import KeepAll, KeepLatest
from tranlogs.shipping.manifest import ShippedItem
from tranlogs.shipping.plan import JournalContents, find_chain, find_recoverable_step, plan_expiry, plan_uploads

ONE = [TimelineRow(1)]


def segment(ordinal: int, base: int, last: int, *, timeline: int = 1, used: int = 100) -> SegmentRow:
    """Sequence numbers are steps here, each a boundary."""
    return SegmentRow(ordinal, f"{ordinal:016x}", f"s{ordinal}", 1000, "sealed", timeline, base, base, last, last, used)


def checkpoint(step: int, *, timeline: int = 1, nbytes: int = 500) -> CheckpointRow:
    return CheckpointRow(f"c{step}", step, step, f"{step:02x}", timeline, nbytes, float(step))


def shipped(*rows: SegmentRow | CheckpointRow, is_durable: bool = True) -> dict[str, ShippedItem]:
    found = {}
    for row in rows:
        name = row.file if isinstance(row, SegmentRow) else row.name
        found[name] = ShippedItem(row, ShippedRow(name, {}, is_durable=is_durable, **places(row)))
    return found


def places(row: SegmentRow | CheckpointRow) -> dict[str, Any]:
    """Digests are the numbers themselves."""
    if isinstance(row, CheckpointRow):
        return {}
    end = f"{row.last_sequence:02x}"
    return {
        "boundary_step": row.last_step,
        "boundary_sequence": row.last_sequence,
        "boundary_chain": end,
        "base_chain": f"{row.base_sequence:02x}",
        "end_sequence": row.last_sequence,
        "end_chain": end,
    }


def sent(look: JournalContents, there: dict[str, ShippedItem], keep: object = None, **more: object) -> list[str]:
    rows = plan_uploads(look, there, keep or KeepLatest(2), **more)  # type: ignore[arg-type]
    return [row.file if isinstance(row, SegmentRow) else row.name for row in rows]


SEGMENTS = [segment(1, 0, 10), segment(2, 10, 20), segment(3, 20, 30)]


def test_the_first_checkpoint_goes_first_then_the_log_in_order() -> None:
    assert sent(JournalContents(SEGMENTS, [checkpoint(0)], ONE), {}) == ["c0", "s1", "s2", "s3"]


def test_a_store_without_a_checkpoint_gets_the_newest_and_what_leads_on_from_it_first() -> None:
    look = JournalContents(SEGMENTS, [checkpoint(0), checkpoint(20)], ONE)
    assert sent(look, {}) == ["c20", "s3", "s1", "s2", "c0"]


def test_a_short_log_goes_before_a_large_checkpoint() -> None:
    look = JournalContents(SEGMENTS, [checkpoint(0), checkpoint(20)], ONE)
    assert sent(look, shipped(checkpoint(0))) == ["s1", "s2", "s3", "c20"]


def test_a_checkpoint_goes_before_a_log_that_is_longer_than_it() -> None:
    look = JournalContents([replace(row, used_bytes=400) for row in SEGMENTS], [checkpoint(0), checkpoint(20)], ONE)
    assert sent(look, shipped(checkpoint(0))) == ["c20", "s3", "s1", "s2"]


def test_what_is_there_or_left_out_is_not_sent() -> None:
    look = JournalContents(SEGMENTS, [checkpoint(0)], ONE)
    assert sent(look, shipped(checkpoint(0), SEGMENTS[0]), excluded=["s2"]) == ["s3"]


def test_nothing_is_sent_that_the_store_would_give_up_at_once() -> None:
    look = JournalContents(SEGMENTS, [checkpoint(0), checkpoint(10), checkpoint(20)], ONE)
    assert sent(look, {}, KeepLatest(1)) == ["c20", "s3"]
    assert set(sent(look, {}, KeepAll())) == {"c0", "c10", "c20", "s1", "s2", "s3"}


def test_what_is_not_sealed_is_not_sent() -> None:
    rows = [SEGMENTS[0], replace(SEGMENTS[1], state="open"), replace(SEGMENTS[2], state="retired")]
    assert sent(JournalContents(rows, [checkpoint(0)], ONE), {}) == ["c0", "s1"]


def test_of_a_timeline_that_was_left_only_what_leads_to_the_fork_is_sent() -> None:
    lines = [TimelineRow(1), TimelineRow(2, 1, 15, 15)]
    rows = [*SEGMENTS, segment(4, 15, 25, timeline=2)]
    assert sent(JournalContents(rows, [checkpoint(0)], lines), {}) == ["c0", "s1", "s2", "s4"]


# How far the store has come.


def came(*rows: SegmentRow | CheckpointRow, lines: list[TimelineRow] | None = None) -> int:
    lines = lines or ONE
    there = shipped(*rows)
    checkpoints = [row for row in rows if isinstance(row, CheckpointRow)]
    segments = [one for one in there.values() if isinstance(one.row, SegmentRow)]
    return find_recoverable_step(checkpoints, segments, lines, JournalContents([], checkpoints, lines).limits)


def test_log_without_a_checkpoint_leads_nowhere() -> None:
    assert came(*SEGMENTS) == 0


def test_a_checkpoint_alone_is_as_far_as_it_is() -> None:
    assert came(checkpoint(7)) == 7


def test_log_counts_up_to_its_first_hole() -> None:
    assert came(checkpoint(0), SEGMENTS[0], SEGMENTS[2]) == 10
    assert came(checkpoint(0), *SEGMENTS) == 30


def test_a_checkpoint_leads_over_a_hole() -> None:
    assert came(checkpoint(0), checkpoint(20), SEGMENTS[0], SEGMENTS[2]) == 30


def test_a_checkpoint_in_the_middle_of_a_segment() -> None:
    assert came(checkpoint(14), SEGMENTS[1], SEGMENTS[2]) == 30


def test_a_segment_that_ends_without_a_boundary_counts_up_to_the_last_one() -> None:
    row = segment(1, 0, 10)
    place = {**places(row), "boundary_step": 9, "boundary_sequence": 9, "boundary_chain": "09"}
    there = [ShippedItem(row, ShippedRow("s1", {}, **place))]
    assert find_recoverable_step([checkpoint(0)], there, ONE, JournalContents([], [], ONE).limits) == 9


def test_what_came_after_the_last_boundary_before_a_crash_is_no_way_on() -> None:
    """Segment 1 ends with entries that no boundary followed; after the crash the log went on from its boundary, in 2 and 3."""
    first, second, third = segment(1, 0, 24), segment(2, 20, 23), segment(3, 23, 40)
    there = [
        ShippedItem(
            first,
            ShippedRow(
                "s1",
                {},
                **{**places(first), "boundary_step": 20, "boundary_sequence": 20, "boundary_chain": "14", "end_chain": "lost"},
            ),
        ),
        ShippedItem(second, ShippedRow("s2", {}, **places(second))),
        ShippedItem(third, ShippedRow("s3", {}, **places(third))),
    ]
    limits = JournalContents([], [], ONE).limits
    assert find_recoverable_step([checkpoint(0)], there, ONE, limits) == 40
    assert [one.objects.name for one in find_chain(checkpoint(0), there, ONE, limits)] == ["s1", "s2", "s3"]
    assert find_recoverable_step([checkpoint(0)], [there[0], there[2]], ONE, limits) == 20, "numbers alone say nothing"


def test_the_store_is_as_far_as_the_newest_timeline_reaches() -> None:
    lines = [TimelineRow(1), TimelineRow(2, 1, 15, 15)]
    assert came(checkpoint(0), *SEGMENTS, lines=lines) == 15
    assert came(checkpoint(0), *SEGMENTS, segment(4, 15, 25, timeline=2), lines=lines) == 25


# What the store gives up.


def test_older_checkpoints_go_with_the_log_behind_the_oldest_kept_one() -> None:
    there = shipped(checkpoint(0), checkpoint(10), checkpoint(20), *SEGMENTS)
    assert sorted(plan_expiry(there, KeepLatest(2), ONE)) == ["c0", "s1"]
    assert plan_expiry(there, KeepAll(), ONE) == []


def test_what_is_not_durable_takes_nothings_place() -> None:
    there = shipped(checkpoint(0), checkpoint(10), *SEGMENTS) | shipped(checkpoint(20), is_durable=False)
    assert plan_expiry(there, KeepLatest(2), ONE) == []


@given(st.lists(st.sampled_from(["seal", "checkpoint", "send", "lose", "give up"]), max_size=60), st.integers(1, 3), st.data())
def test_giving_up_never_takes_the_store_back(trace: list[str], keep: int, data: st.DataObject) -> None:
    """Whatever order things come in: what a store gives up changes nothing of how far recovery from it comes."""
    segments: list[SegmentRow] = []
    checkpoints, there = [checkpoint(0)], shipped()
    for what in trace:
        at = segments[-1].last_sequence if segments else 0
        look = JournalContents(segments, checkpoints, ONE)
        if what == "seal":
            end, used = at + data.draw(st.integers(1, 6)), data.draw(st.integers(1, 900))
            segments.append(segment(len(segments) + 1, at, end, used=used))
        elif what == "checkpoint" and checkpoints[-1].step < at:
            checkpoints.append(checkpoint(at))
        elif what == "send":
            for row in plan_uploads(look, there, KeepLatest(keep))[:1]:
                there |= shipped(row, is_durable=data.draw(st.booleans()))
        elif what == "lose" and there:
            del there[data.draw(st.sampled_from(sorted(there)))]
        before = came(*(one.row for one in there.values()))
        for name in plan_expiry(there, KeepLatest(keep), ONE):
            del there[name]
        assert came(*(one.row for one in there.values())) == before
