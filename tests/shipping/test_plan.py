"""What is sent next, how far a store has come, what it gives up, as tables; and the manifest that says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.faulty_store import FaultyStore
from tranlogs.base.clock import Clock
from tranlogs.base.errors import CorruptObject, StoreUnavailable, UnknownFormat
from tranlogs.catalog import CheckpointRow, RunRow, SegmentRow, TimelineRow
from tranlogs.checkpoints.folder import open_manifest, seal_manifest
from tranlogs.retention.keep_policy import KeepAll, KeepLatest, RetentionPolicy
from tranlogs.shipping.manifest import (
    Manifest,
    ManifestHistory,
    ShippedItem,
    manifest_names,
    parse_manifest_name,
    publish,
    read_newest,
)
from tranlogs.shipping.plan import JournalContents, find_chain, find_recoverable_step, plan_expiry, plan_uploads

ONE = [TimelineRow(1)]
TWO = [TimelineRow(1), TimelineRow(2, 1, 15, 15)]
Row = SegmentRow | CheckpointRow


def segment(ordinal: int, base: int, last: int, *, timeline: int = 1, used: int = 100) -> SegmentRow:
    """Sequence numbers are steps here, each a boundary."""
    return SegmentRow(ordinal, f"{ordinal:016x}", f"s{ordinal}", 1000, "sealed", timeline, base, base, last, last, used)


def checkpoint(step: int, *, timeline: int = 1, nbytes: int = 500) -> CheckpointRow:
    return CheckpointRow(f"c{step}", step, step, f"{step:02x}", timeline, nbytes, float(step))


S1, S2, S3 = SEGMENTS = [segment(1, 0, 10), segment(2, 10, 20), segment(3, 20, 30)]
S4 = segment(4, 15, 25, timeline=2)
C0, C7, C10, C14, C20 = (checkpoint(step) for step in (0, 7, 10, 14, 20))
LONG = [replace(row, used_bytes=400) for row in SEGMENTS]
UNSEALED = [S1, replace(S2, state="open"), replace(S3, state="retired")]


def name_of(row: Row) -> str:
    return row.file if isinstance(row, SegmentRow) else row.name


def shipped(*rows: Row, is_durable: bool = True) -> dict[str, ShippedItem]:
    return {name_of(row): ShippedItem(row, {}, is_durable=is_durable, **places(row)) for row in rows}


def places(row: Row) -> dict[str, Any]:
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


@pytest.mark.parametrize(
    ("segments", "checkpoints", "there", "keep", "sent"),
    [
        (SEGMENTS, [C0], [], KeepLatest(2), "c0 s1 s2 s3"),
        # A store without a checkpoint gets the newest, and what leads on from it, first.
        (SEGMENTS, [C0, C20], [], KeepLatest(2), "c20 s3 s1 s2 c0"),
        # A short log goes before a large checkpoint, which goes before a log that is longer than it.
        (SEGMENTS, [C0, C20], [C0], KeepLatest(2), "s1 s2 s3 c20"),
        (LONG, [C0, C20], [C0], KeepLatest(2), "c20 s3 s1 s2"),
        (SEGMENTS, [C0], [C0, S1], KeepLatest(2), "s2 s3"),
        # Nothing that the store would give up at once.
        (SEGMENTS, [C0, C10, C20], [], KeepLatest(1), "c20 s3"),
        (UNSEALED, [C0], [], KeepLatest(2), "c0 s1"),
        # Of a timeline that was left only what leads to the fork.
        ([*SEGMENTS, S4], [C0], [], KeepLatest(2), "c0 s1 s2 s4"),
    ],
)
def test_what_is_sent_next(
    segments: list[SegmentRow], checkpoints: list[CheckpointRow], there: list[Row], keep: RetentionPolicy, sent: str
) -> None:
    look = JournalContents(segments, checkpoints, TWO if S4 in segments else ONE)
    assert " ".join(map(name_of, plan_uploads(look, shipped(*there), keep))) == sent
    without = plan_uploads(look, shipped(*there), keep, excluded=["s1"])
    assert {name_of(row) for row in without} == set(sent.split()) - {"s1"}


def came(*rows: Row, lines: list[TimelineRow] | None = None) -> int:
    lines = lines or ONE
    checkpoints = [row for row in rows if isinstance(row, CheckpointRow)]
    segments = [one for one in shipped(*rows).values() if isinstance(one.row, SegmentRow)]
    return find_recoverable_step(checkpoints, segments, lines, JournalContents([], checkpoints, lines).limits)


@pytest.mark.parametrize(
    ("rows", "lines", "step"),
    [
        (SEGMENTS, ONE, 0),  # without a checkpoint
        ([C7], ONE, 7),
        ([C0, S1, S3], ONE, 10),  # up to the first hole
        ([C0, *SEGMENTS], ONE, 30),
        ([C0, C20, S1, S3], ONE, 30),  # a checkpoint leads over a hole
        ([C14, S2, S3], ONE, 30),  # which may lie in the middle of a segment
        ([C0, *SEGMENTS], TWO, 15),  # as far as the newest timeline reaches
        ([C0, *SEGMENTS, S4], TWO, 25),
    ],
)
def test_how_far_a_store_has_come(rows: list[Row], lines: list[TimelineRow], step: int) -> None:
    assert came(*rows, lines=lines) == step


def test_what_came_after_the_last_boundary_before_a_crash_is_no_way_on() -> None:
    """Segment 1 ends with entries that no boundary followed; after the crash the log went on from its boundary, in 2 and 3."""
    first, second, third = segment(1, 0, 24), segment(2, 20, 23), segment(3, 23, 40)
    broken = {"boundary_step": 20, "boundary_sequence": 20, "boundary_chain": "14", "end_chain": "lost"}
    there = [
        ShippedItem(first, {}, **{**places(first), **broken}),
        ShippedItem(second, {}, **places(second)),
        ShippedItem(third, {}, **places(third)),
    ]
    limits = JournalContents([], [], ONE).limits
    assert find_recoverable_step([C0], there, ONE, limits) == 40
    assert [one.name for one in find_chain(C0, there, ONE, limits)] == ["s1", "s2", "s3"]
    assert find_recoverable_step([C0], there[:1], ONE, limits) == 20, "up to its last boundary"
    assert find_recoverable_step([C0], [there[0], there[2]], ONE, limits) == 20, "numbers alone say nothing"


def test_older_checkpoints_go_with_the_log_behind_the_oldest_kept_one() -> None:
    there = shipped(C0, C10, C20, *SEGMENTS)
    assert sorted(plan_expiry(there, KeepLatest(2), ONE)) == ["c0", "s1"]
    assert plan_expiry(there, KeepAll(), ONE) == []
    there |= shipped(C20, is_durable=False)
    assert plan_expiry(there, KeepLatest(2), ONE) == [], "what is not durable takes nothing's place"


@given(st.lists(st.sampled_from(["seal", "checkpoint", "send", "lose", "give up"]), max_size=60), st.integers(1, 3), st.data())
def test_giving_up_never_takes_the_store_back(trace: list[str], keep: int, data: st.DataObject) -> None:
    """Whatever order things come in: what a store gives up changes nothing of how far recovery from it comes."""
    segments: list[SegmentRow] = []
    checkpoints, there = [C0], shipped()
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


# The manifest.

PLACE = "a/rank0"
MANIFEST = Manifest(
    12,
    "0123456789abcdef",
    "host",
    3.5,
    RunRow("run", 0, 1.0, framework="torch"),
    (TimelineRow(1), TimelineRow(2, 1, 9, 4)),
    {
        "s3": ShippedItem(S3, {"s3": [["a", 700, "00"], ["b", 100, "01"]]}, 9, 20, is_durable=True, at=3.0),
        "c0": ShippedItem(C0, {"meta.bin": [["c", 5, "02"]]}),
    },
)


def test_a_manifest_comes_back_as_it_was_and_only_of_a_version_that_is_known() -> None:
    assert Manifest.unpack(MANIFEST.pack(), "m") == MANIFEST
    content = open_manifest(MANIFEST.pack())
    content["segments"][0][0]["colour"] = "red"  # what a newer version adds is passed over
    assert Manifest.unpack(seal_manifest(content), "m") == MANIFEST
    with pytest.raises(UnknownFormat):
        Manifest.unpack(seal_manifest({**content, "format": 99}), "m")


@given(st.integers(0, len(MANIFEST.pack()) - 1), st.integers(1, 255))
def test_a_damaged_manifest_is_never_read(place: int, bits: int) -> None:
    raw = bytearray(MANIFEST.pack())
    raw[place] ^= bits
    try:
        assert Manifest.unpack(bytes(raw), "m") == MANIFEST  # white space
    except CorruptObject:
        pass


def test_a_manifest_that_is_not_there_as_it_was_written_is_no_manifest() -> None:
    store = FaultyStore()
    store.spoils = lambda name, data: data[:-1]
    with pytest.raises(StoreUnavailable, match="does not hold it in full"):
        publish(store, PLACE, MANIFEST)


def test_the_newest_manifest_counts_and_a_few_older_ones_stay_and_the_newest_that_is_durable() -> None:
    """What is not durable yet can all be lost at once."""
    store = FaultyStore()
    published = ManifestHistory(store, PLACE, Clock())

    def accept(number: int, *, is_forgotten: bool) -> list[int]:
        """Publish a manifest as the ledger does; the numbers that the store has then."""
        name = publish(store, PLACE, replace(MANIFEST, number=number))
        if is_forgotten:
            store.forgotten.add(name)
        published.add(replace(MANIFEST, number=number), name, manifest_names(store, PLACE))
        assert not published.update(1e9)
        return [parse_manifest_name(name)[0] for name in manifest_names(store, PLACE)]

    for number in range(1, 12):
        left = accept(number, is_forgotten=number > 3)
    assert published.durable is not None
    assert (left, published.durable.number) == ([11, 10, 9, 8, 3], 3)
    found, notes = read_newest(store, PLACE)
    assert found is not None
    assert (found.number, notes) == (11, [])

    again = ManifestHistory(store, PLACE, Clock())  # whoever begins finds the durable one
    names = manifest_names(store, PLACE)
    again.load(replace(MANIFEST, number=11), names[0], names)
    assert again.durable is not None
    assert (again.newest, again.durable.number) == (replace(MANIFEST, number=11), 3)

    store.forgotten.remove(names[2])
    accept(12, is_forgotten=True)
    assert published.durable.number == 9, "newer ones keep coming: the newest is not durable, ever"
    assert (accept(13, is_forgotten=True), published.durable.number) == ([13, 12, 11, 10, 9], 9)
