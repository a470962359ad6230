"""The write-ahead log: what is committed is found, what is not is not, failures latch, segments roll."""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.bare_log import BareLog, append_step, expected_step
from tests.support.faults import failing
from tranlogs.base.config import MIB, PAYLOAD_THREAD_BYTES_MIN, RECORD_SLACK_BYTES, JournalConfig
from tranlogs.base.errors import CorruptRecord, LogUnavailable, UnencodableState
from tranlogs.base.types import Array, Piece, SparseArray, TensorSpec, dense
from tranlogs.catalog import SegmentRow, Tables
from tranlogs.log.body import EncodedBody
from tranlogs.log.entry import Entry
from tranlogs.log.index import LogIndex
from tranlogs.log.layout import NO_TENSORS, PIECE_BYTES_MAX, SEPARATE_PIECE_BYTES_MIN, Layout, Payload
from tranlogs.log.reader import SegmentReader
from tranlogs.log.record import HEAD, EntryKind, Position, unpack_head
from tranlogs.log.scanner import scan
from tranlogs.log.segments.segment_file import SegmentFile
from tranlogs.log.syncing import group_commit
from tranlogs.log.syncing.group_commit import GroupCommit
from tranlogs.log.syncing.sync_state import SyncWork
from tranlogs.log.writer import WriteAheadLog


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareLog]:
    made = BareLog(tmp_path)
    yield made
    made.close()


def expected(steps: range, size: int = 100) -> list[object]:
    return [entry for step in steps for entry in expected_step(step, size)]


ONES = Payload.of([("w", dense(np.ones(1000)))])


def whole(log: WriteAheadLog, body: Any) -> EncodedBody:
    return log.encoder.whole(body, None)


def boundary(log: WriteAheadLog, step: int, body: dict[str, Any], **tensors: Any) -> None:
    payload = Payload.of((name, dense(values)) for name, values in tensors.items())
    log.append(EntryKind.BOUNDARY, step, payload, log.encoder.parts(body, None))


def only_entry(bare: BareLog) -> tuple[SegmentReader, Entry]:
    (link,) = bare.links()
    reader = SegmentReader(link.segment.path)
    return reader, reader.decode(link.location)


def test_a_segment_is_closed_before_the_catalog_calls_it_sealed(bare: BareLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on it may be retired, and its file made a new segment, by other threads."""
    closed, sealed = set[str](), list[tuple[str, bool]]()
    close, put = SegmentFile.close, Tables.put

    def closing(segment: SegmentFile) -> None:
        close(segment)
        closed.add(segment.path.name)

    def putting(tables: Tables, key: str, row: object) -> None:
        if isinstance(row, SegmentRow) and row.state == "sealed":
            sealed.append((row.file, row.file in closed))
        put(tables, key, row)

    monkeypatch.setattr(SegmentFile, "close", closing)
    monkeypatch.setattr(Tables, "put", putting)
    log = bare.open()
    append_step(log, 1)
    log.roll()
    append_step(log, 2)
    log.close()
    assert [was_closed for _, was_closed in sealed] == [True, True]


def test_what_was_appended_is_found_in_order(bare: BareLog) -> None:
    log = bare.open()
    for step in range(1, 40):
        append_step(log, step)
    log.close()
    assert bare.contents() == expected(range(1, 40))


def test_an_open_segment_is_readable_beside_the_writer(bare: BareLog) -> None:
    log = bare.open()
    for step in range(1, 6):
        append_step(log, step)
        assert bare.contents() == expected(range(1, step + 1))
    log.close()


def test_a_clean_close_seals_and_syncs_everything(tmp_path: Path) -> None:
    bare = BareLog(tmp_path, JournalConfig(durability="machine", segment_bytes=MIB))
    log = bare.open()
    append_step(log, 1)
    log.close()
    assert bare.catalog is not None
    assert [(row.state, row.last_sequence) for row in bare.catalog.segments()] == [("sealed", 2)]
    assert (bare.catalog.watermarks().committed, bare.catalog.watermarks().synced) == (1, 1)
    bare.close()


def test_an_entry_that_is_not_committed_leaves_no_trace(bare: BareLog) -> None:
    log = bare.open()
    append_step(log, 1)
    writer = log.begin(ONES)
    writer.wait()
    writer.abort()
    assert not writer.is_open
    writer = log.begin(ONES)
    writer.wait()
    append_step(log, 2)  # another record begins: the open one is dropped, and overwritten
    assert not writer.is_open
    log.close()
    assert bare.contents() == expected(range(1, 3))


def test_closing_drops_an_open_entry(bare: BareLog) -> None:
    log = bare.open()
    append_step(log, 1)
    writer = log.begin(ONES)
    writer.wait()
    log.close()
    assert not writer.is_open
    assert bare.contents() == expected(range(1, 2))


def test_segments_roll_before_they_are_full(bare: BareLog) -> None:
    log, size = bare.open(), 60_000
    for step in range(1, 60):
        append_step(log, step, size)
    log.close()
    assert len(bare.links()) == 118
    assert bare.contents() == expected(range(1, 60), size)
    assert bare.catalog is not None
    rows = bare.catalog.segments()
    assert len(rows) > 2
    assert {row.state for row in rows} == {"sealed"}
    assert all(row.used_bytes <= row.size == (bare.folder / "log" / row.file).stat().st_size for row in rows)
    assert rows[-1].used_bytes == rows[-1].size  # `close` gives back what the last one does not need


def test_an_entry_larger_than_a_segment_gets_a_larger_segment(bare: BareLog) -> None:
    log = bare.open()
    append_step(log, 1)
    append_step(log, 2, 500_000)
    append_step(log, 3)
    log.close()
    assert bare.contents() == expected_step(1) + expected_step(2, 500_000) + expected_step(3)


def test_a_segment_rolls_by_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The thread behind the log seals old segments too, whenever it wakes up: tests/log/segments/test_segment_age.py.
    monkeypatch.setattr(WriteAheadLog, "_seal_old", lambda log: None)
    bare = BareLog(tmp_path, JournalConfig(durability="process", segment_bytes=MIB, segment_age_seconds=10.0))
    log = bare.open()
    for step in range(1, 7):
        append_step(log, step)
        bare.clock.advance(6.0)  # type: ignore[attr-defined]
    log.close()
    ordinals = [link.segment.row.ordinal for link in bare.links()]
    assert [ordinals.count(ordinal) for ordinal in sorted(set(ordinals))] == [6, 6]
    assert bare.contents() == expected(range(1, 7))
    bare.close()


@pytest.mark.parametrize("segment_bytes", [MIB, MIB + 1, 3_333_333])
def test_a_segment_of_any_size_works(tmp_path: Path, segment_bytes: int) -> None:
    bare = BareLog(tmp_path, JournalConfig(durability="machine", segment_bytes=segment_bytes))
    log = bare.open()
    for step in range(1, 30):
        append_step(log, step, 30_000)
    log.close()
    assert bare.contents() == expected(range(1, 30), 30_000)
    bare.close()


def test_the_chain_goes_on_over_segments_and_reopening(bare: BareLog) -> None:
    log = bare.open()
    for step in range(1, 4):
        append_step(log, step)
    position = log.position
    log.close()
    log = bare.open(position)
    append_step(log, 4)
    log.roll()
    append_step(log, 5)
    log.close()
    assert bare.contents() == expected(range(1, 6))
    assert len({link.segment.row.ordinal for link in bare.links()}) == 3


def test_another_chain_is_not_joined(bare: BareLog) -> None:
    log = bare.open()
    append_step(log, 1)
    position = log.position
    log.close()
    log = bare.open(replace(position, chain=position.chain ^ 1))
    append_step(log, 2)
    log.close()
    assert bare.contents() == expected(range(1, 2))


def test_entries_behind_a_later_base_are_superseded(bare: BareLog) -> None:
    log = bare.open()
    append_step(log, 1)
    landed = log.position
    append_step(log, 2, size=50, boundary=False)
    log.close()
    log = bare.open(landed)
    append_step(log, 2)
    log.close()
    assert bare.contents() == expected(range(1, 3))


def test_many_tiny_tensors_share_a_layout_and_pieces(bare: BareLog) -> None:
    log = bare.open()
    tensors = [(f"w{i}", dense(np.full(i % 700, i + 1, np.float32))) for i in range(2000)]
    for step in (1, 2):
        log.append(EntryKind.STEP, step, Payload.of(tensors), whole(log, {}))
    log.close()
    for _, _, found, _ in bare.contents():
        assert found == {name: array.data.tobytes() for name, array in tensors}
    first, second = bare.links()
    nbytes = sum(array.nbytes for _, array in tensors)
    assert first.location.head.description_bytes > 10 * len(tensors)
    # Layouts are stored once a segment. A sum and, where it shrinks, a length and a codec are what a piece adds.
    assert second.location.head.description_bytes < 300 + 13 * (2 * nbytes // PIECE_BYTES_MAX + 1)


@pytest.mark.parametrize(
    "nbytes",
    [
        SEPARATE_PIECE_BYTES_MIN - 1,
        SEPARATE_PIECE_BYTES_MIN,
        PIECE_BYTES_MAX - 1,
        PIECE_BYTES_MAX,
        PIECE_BYTES_MAX + 1,
        3 * PIECE_BYTES_MAX + 5,
        PAYLOAD_THREAD_BYTES_MIN - 8,
        PAYLOAD_THREAD_BYTES_MIN - 7,
    ],
)
def test_sizes_around_the_limits_come_back(bare: BareLog, nbytes: int) -> None:
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    log = bare.open()
    log.append(EntryKind.STEP, 1, Payload.of([("a", dense(data)), ("b", dense(data[:7])), ("c", dense(data))]), whole(log, {}))
    log.append(EntryKind.STEP, 2, Payload.of([("a", dense(data)), ("b", dense(data[:7]))]), whole(log, {}))
    log.close()
    assert [tensors for _, _, tensors, _ in bare.contents()] == [
        {"a": data.tobytes(), "b": data[:7].tobytes(), "c": data.tobytes()},
        {"a": data.tobytes(), "b": data[:7].tobytes()},
    ]


def test_a_tensor_of_many_pieces_comes_back_whole_and_in_ranges(bare: BareLog) -> None:
    values = np.random.default_rng(0).standard_normal((555, 666))
    permuted = Array("float64", (666, 555), dense(values).data, (1, 666))
    log = bare.open()
    log.append(EntryKind.STEP, 1, Payload.of([("w", dense(values)), ("p", permuted)]), whole(log, {}))
    log.close()
    reader, entry = only_entry(bare)
    with reader:
        assert len(entry.describe_pieces()) == 6
        part, other = entry.read("w"), entry.read("p")
        assert entry.read_all().tobytes() == 2 * values.tobytes()
        out = np.empty(3000, np.uint8)
        entry.read_range(PIECE_BYTES_MAX - 1500, out, "w")
        assert out.tobytes() == values.tobytes()[PIECE_BYTES_MAX - 1500 : PIECE_BYTES_MAX + 1500]
    assert isinstance(part, Array)
    assert isinstance(other, Array)
    assert (part.shape, part.data.tobytes()) == ((555, 666), values.tobytes())
    assert (other.shape, other.strides, other.data.tobytes()) == ((666, 555), (1, 666), values.tobytes())


def test_several_ranges_of_a_tensor_are_joined(bare: BareLog) -> None:
    """As a rank has them that holds several shares of one tensor."""
    values = np.arange(40, dtype=np.float32)
    log = bare.open()
    tensors = []
    for start, end in ((0, 13), (13, 14), (14, 40)):
        array = dense(values[start:end])
        array.whole, array.piece = (5, 8), Piece("flat", (start,), (end - start,))
        tensors += [("w", array), (f"between{start}", dense(np.ones(3)))]
    log.append(EntryKind.STEP, 1, Payload.of(tensors), whole(log, {}))
    log.close()
    reader, entry = only_entry(bare)
    with reader:
        found = entry.read("w")
    assert isinstance(found, Array)
    assert (found.shape, found.piece, found.data.tobytes()) == ((5, 8), None, values.tobytes())


def test_layouts_pieces_and_sparse_tensors_come_back(bare: BareLog) -> None:
    rng = np.random.default_rng(0)
    permuted = Array("float32", (4, 6), dense(rng.standard_normal((6, 4)).astype(np.float32)).data, (1, 4))
    scalar = Array("bfloat16", (), dense(np.array(3, np.uint16)).data)
    empty = Array("complex64", (0, 5), np.empty(0, np.uint8), (5, 1))
    piece = Piece("box", (2, 0), (2, 3))
    box = Array("float64", (2, 3), dense(rng.standard_normal((2, 3))).data, whole=(8, 3), piece=piece)
    indices = Array("int64", (1, 4), dense(np.array([[3, 1, 1, 0]])).data)
    sparse = SparseArray((5, 2), indices, Array("float32", (4, 2), dense(np.arange(8, dtype=np.float32)).data), False)
    log = bare.open()
    payload = Payload.of([("permuted", permuted), ("scalar", scalar), ("empty", empty), ("sparse", sparse), ("box", box)])
    writer = log.begin(payload)
    log.commit(writer, EntryKind.STEP, 1, whole(log, {"far": np.arange(5000)}), b"digests", {"loss": 0.5})
    log.close()
    reader, entry = only_entry(bare)
    with reader:
        for name, made in (("permuted", permuted), ("scalar", scalar), ("empty", empty)):
            found = entry.read(name)
            assert isinstance(found, Array)
            assert (found.dtype, found.shape, found.strides) == (made.dtype, made.shape, made.strides)
            assert found.data.tobytes() == made.data.tobytes()
        again = entry.read("sparse")
        assert isinstance(again, SparseArray)
        assert (again.shape, again.is_coalesced) == ((5, 2), False)
        assert again.indices.data.tobytes() == indices.data.tobytes()
        assert again.values.data.tobytes() == sparse.values.data.tobytes()
        assert entry.layout.tensors[4] == TensorSpec("box", "float64", (8, 3), None, piece)
        part = entry.read("box")
        assert isinstance(part, Array)
        assert (part.shape, part.whole, part.piece) == ((2, 3), (8, 3), piece)
        assert part.data.tobytes() == box.data.tobytes()
        assert np.array_equal(entry.body()["far"], np.arange(5000))
        assert (entry.digests, entry.scalars) == (b"digests", {"loss": 0.5})


def test_where_the_buffers_end_makes_no_difference(bare: BareLog) -> None:
    """Small tensors gathered into one arena and large ones by reference are the same bytes as one buffer each."""
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, 3 * MIB + 77, np.uint8)
    layout = Layout([TensorSpec(f"w{i}", "uint8", (size,)) for i, size in enumerate((5, 0, 300_000, 1, 2 * MIB))])
    raw = raw[: layout.nbytes]
    log = bare.open()
    for step in range(1, 12):
        cuts = sorted({0, raw.nbytes, *rng.integers(0, raw.nbytes, step - 1).tolist()})
        buffers = [raw[start:end] for start, end in itertools.pairwise(cuts)]
        log.append(EntryKind.STEP, step, Payload(layout, buffers), whole(log, {}))
    log.close()
    links = bare.links()
    assert len(links) == 11
    for link in links:
        with SegmentReader(link.segment.path) as reader:
            assert reader.decode(link.location).read_all().tobytes() == raw.tobytes()


def test_unchanged_parts_and_arrays_of_boundaries_are_stored_once_a_segment(bare: BareLog) -> None:
    big = np.random.default_rng(0).standard_normal(20_000)
    log = bare.open()
    boundary(log, 0, {"ema": big, "n": 0, "words": ["a constant"] * 500})
    before = log.bytes_written
    for n in range(1, 6):
        boundary(log, 0, {"ema": big, "n": n, "words": ["a constant"] * 500})
    assert log.bytes_written - before < 5 * 512
    log.roll()
    boundary(log, 0, {"ema": big + 1, "n": 6, "words": []})
    boundary(log, 0, {"ema": big + 1, "n": 6})
    log.close()
    bodies = [body for _, _, _, body in bare.contents()]
    assert [body["n"] for body in bodies] == [*range(7), 6]
    assert [len(body.get("words", "-")) for body in bodies] == [500] * 6 + [0, 1]
    assert all(np.array_equal(body["ema"], big + (body["n"] == 6)) for body in bodies)


def test_the_body_of_steps_is_stored_once_a_segment(bare: BareLog) -> None:
    log = bare.open()
    bodies = [{"groups": ["a"] * 1000}, {"groups": ["b"] * 1000}]
    for step in range(1, 9):
        log.append(EntryKind.STEP, step, NO_TENSORS, whole(log, bodies[step % 2]), step.to_bytes(8, "little"))
    log.roll()
    log.append(EntryKind.STEP, 9, NO_TENSORS, whole(log, bodies[1]))
    log.close()
    links = bare.links()
    assert [body for _, _, _, body in bare.contents()] == [bodies[step % 2] for step in range(1, 10)]
    lengths = [link.location.head.description_bytes for link in links]
    assert min(lengths[0], lengths[1], lengths[8]) > 1000
    assert max(lengths[2:8]) < 100
    with SegmentReader(links[0].segment.path) as reader:
        entries = [reader.decode(link.location) for link in links[:8]]
    assert len({entry.body_key for entry in entries[::2]}) == len({entry.body_key for entry in entries[1::2]}) == 1
    assert entries[0].body_key != entries[1].body_key
    assert [int.from_bytes(entry.digests, "little") for entry in entries] == list(range(1, 9))


def test_an_aborted_record_does_not_spoil_what_later_ones_refer_to(bare: BareLog) -> None:
    big = np.random.default_rng(0).standard_normal(20_000)
    log = bare.open()
    append_step(log, 1)
    with failing("log.before_commit=enospc@1"), pytest.raises(LogUnavailable):
        boundary(log, 1, {"ema": big, "x": 1}, new=big)
    boundary(log, 1, {"ema": big, "x": 2}, new=big)
    boundary(log, 1, {"ema": big, "x": 3}, new=big)
    with failing("log.before_commit=enospc@1"), pytest.raises(LogUnavailable):
        log.append(EntryKind.STEP, 2, Payload.of([("other", dense(big))]), whole(log, {"lr": 1}))
    log.append(EntryKind.STEP, 2, Payload.of([("other", dense(big))]), whole(log, {"lr": 1}))
    log.append(EntryKind.STEP, 3, Payload.of([("other", dense(big))]), whole(log, {"lr": 1}))
    log.close()
    for (_, _, tensors, body), n in zip(bare.contents()[2:4], (2, 3), strict=True):
        assert tensors == {"new": big.tobytes()}
        assert np.array_equal(body["ema"], big)
        assert body["x"] == n
    assert [(tensors, body) for _, _, tensors, body in bare.contents()[4:]] == 2 * [({"other": big.tobytes()}, {"lr": 1})]


def test_decoding_may_start_where_everything_is_defined_again(bare: BareLog) -> None:
    big = np.random.default_rng(0).standard_normal(20_000)
    log = bare.open()
    for step in range(1, 7):
        if step == 4:
            log.forget_definitions()
        log.append(EntryKind.STEP, step, Payload.of([("w", dense(np.full(5, step)))]), whole(log, {"lr": 1}))
        boundary(log, step, {"ema": big, "step": step})
    log.close()
    links = [link for link in bare.links() if link.step >= 4]
    path = links[0].segment.path
    with path.open("r+b") as file:  # nothing before them is needed
        file.seek(HEAD.size)
        file.write(b"\xa5" * (links[0].location.offset - HEAD.size))
    (bare.folder / "log" / "records.lmdb").unlink()
    with SegmentReader(path) as reader:
        entries = [reader.decode(link.location) for link in links]
        bodies = [entry.body() for entry in entries]
        values = [entry.read_all().view(np.int64).tolist() for entry in entries if entry.kind == EntryKind.STEP]
    assert [body["step"] for body in bodies[1::2]] == [4, 5, 6]
    assert all(np.array_equal(body["ema"], big) for body in bodies[1::2])
    assert bodies[0::2] == [{"lr": 1}] * 3
    assert values == [[step] * 5 for step in (4, 5, 6)]


def test_a_record_that_refers_to_a_damaged_one_is_read_from_the_index_or_refused(bare: BareLog) -> None:
    log = bare.open()
    for step in (1, 2, 3):
        log.append(EntryKind.STEP, step, Payload.of([("w", dense(np.full(5, step)))]), whole(log, {"lr": ["x"] * 50}))
    log.close()
    first, second, third = bare.links()
    with first.segment.path.open("r+b") as file:
        file.seek(first.location.description_offset + 30)
        file.write(b"\xff\xff")
    index = LogIndex.open(bare.folder / "log", "bare")
    locations = index.locations(first.segment.row.number)[1:]
    index.close()
    assert [location.offset for location in locations] == [link.location.offset for link in (first, second, third)]
    with SegmentReader(first.segment.path, locations) as reader:
        for step, location in enumerate(locations, 1):
            entry = reader.decode(location)
            assert entry.body() == {"lr": ["x"] * 50}
            assert entry.read_all().view(np.int64).tolist() == [step] * 5
    with SegmentReader(first.segment.path, uses_index=False) as reader:
        for location in scan(first.segment.path, first.segment.row.number)[2:]:
            why = rf"step {location.head.step}: the record refers to the record at byte {first.location.offset}"
            with pytest.raises(CorruptRecord, match=why):
                reader.decode(location)


def head_of(segment: SegmentFile, offset: int) -> bytes:
    return segment.path.read_bytes()[offset : offset + HEAD.size]


@pytest.mark.parametrize("size", [100, 500_000])
def test_the_head_is_written_last(bare: BareLog, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Until then nothing of a record is there for a scan, and behind it everything is."""
    log, seen = bare.open(), list[bool]()
    append_step(log, 1, size)
    write_head = SegmentFile.write_head

    def writing(segment: SegmentFile, head: bytes, offset: int) -> None:
        before = len(scan(segment.path, segment.segment_id))
        assert not any(head_of(segment, offset))
        write_head(segment, head, offset)
        found = scan(segment.path, segment.segment_id)
        assert len(found) == before + 1
        with SegmentReader(segment.path) as reader:
            entry = reader.decode(found[-1])
            entry.read_all()
            entry.body()
        seen.append(True)

    monkeypatch.setattr(SegmentFile, "write_head", writing)
    append_step(log, 2, size)
    monkeypatch.undo()
    log.close()
    assert len(seen) >= 2


def test_a_record_that_was_dropped_is_overwritten_by_the_next(bare: BareLog) -> None:
    log = bare.open()
    append_step(log, 1)
    large = Payload.of([("w", dense(np.random.default_rng(1).standard_normal(200_000)))])
    dropped = log.begin(large)
    dropped.wait()
    dropped.abort()
    kept = log.begin(ONES)
    assert kept.offset == dropped.offset
    log.commit(kept, EntryKind.STEP, 2, whole(log, {}))
    log.close()
    assert [step for _, step, _, _ in bare.contents()] == [1, 1, 2]
    assert bare.contents()[-1][2] == {"w": np.ones(1000).tobytes()}


def test_a_description_longer_than_the_slack_makes_the_file_larger(bare: BareLog) -> None:
    log = bare.open()
    append_step(log, 1)
    assert log._segment is not None
    path, size = log._segment.path, log._segment.size
    payload = Payload.of([("w", dense(np.random.default_rng(0).integers(0, 256, size - 2 * RECORD_SLACK_BYTES, np.uint8)))])
    record = log.begin(payload)
    assert record.segment.path == path
    body = {"long": np.random.default_rng(1).bytes(3 * RECORD_SLACK_BYTES)}
    log.commit(record, EntryKind.STEP, 2, whole(log, body))
    assert path.stat().st_size > size
    assert path.stat().st_blocks * 512 >= path.stat().st_size
    append_step(log, 3)
    log.close()
    found = bare.contents()
    assert found[2][3] == body
    assert found[3:] == expected_step(3)
    assert bare.catalog is not None
    row = bare.catalog.segments()[0]
    assert row.size == path.stat().st_size


def test_a_file_that_cannot_become_larger_keeps_the_record_out(bare: BareLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log = bare.open()
    append_step(log, 1)
    assert log._segment is not None
    payload = Payload.of([("w", dense(np.ones(log._segment.size - 2 * RECORD_SLACK_BYTES, np.uint8)))])
    body = whole(log, {"long": np.random.default_rng(1).bytes(3 * RECORD_SLACK_BYTES)})

    def full(fd: int, offset: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    payload = Payload.of([("w", dense(np.random.default_rng(0).integers(0, 256, payload.nbytes, np.uint8)))])
    record = log.begin(payload)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(LogUnavailable, match="No space left"):
            log.commit(record, EntryKind.STEP, 2, body)
    assert not record.is_open
    append_step(log, 2)
    log.close()
    assert bare.contents() == expected(range(1, 3))


@pytest.mark.parametrize("durability", ["process", "machine"])
def test_a_record_is_there_for_a_scan_as_soon_as_it_is_committed(tmp_path: Path, durability: Any) -> None:
    """And whoever opens the journal sees it, whether the index has it or not."""
    bare = BareLog(tmp_path, JournalConfig(durability=durability, segment_bytes=MIB))
    log = bare.open()
    with failing("log.index=eio"):  # nothing gets into the index
        for step in range(1, 20):
            if log.failure is not None:
                break
            append_step(log, step)
            assert bare.contents() == expected(range(1, step + 1))
        with suppress(LogUnavailable):
            log.close()
    bare.close()


def test_segments_are_synced_before_the_index_is_committed_and_synced_comes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = BareLog(tmp_path, JournalConfig(durability="machine", segment_bytes=MIB))
    log, unsynced, wrong = bare.open(), set[str](), list[str]()
    indexed = set[int]()
    write_head, sync, add = SegmentFile.write_head, SegmentFile.sync, LogIndex.add

    def writing(segment: SegmentFile, head: bytes, offset: int) -> None:
        write_head(segment, head, offset)
        unsynced.add(f"{segment.segment_id:x} {offset}")

    def syncing(segment: SegmentFile) -> None:
        before = {key for key in unsynced if key.startswith(f"{segment.segment_id:x} ")}
        sync(segment)
        unsynced.difference_update(before)

    def adding(index: LogIndex, records: Any) -> None:
        records = list(records)
        made = [one for one in records if unpack_head(one.head).kind != EntryKind.SEGMENT]  # type: ignore[union-attr]
        wrong.extend(f"record {one.sequence} is not synced" for one in made if f"{one.segment_id:x} {one.offset}" in unsynced)
        wrong.extend(f"synced claims record {one.sequence}" for one in made if log.synced.sequence >= one.sequence)
        add(index, records)
        indexed.update(one.sequence for one in made)
        wrong.extend(f"synced claims record {one.sequence}" for one in made if log.synced.sequence >= one.sequence)

    monkeypatch.setattr(SegmentFile, "write_head", writing)
    monkeypatch.setattr(SegmentFile, "sync", syncing)
    monkeypatch.setattr(LogIndex, "add", adding)
    for step in range(1, 80):
        append_step(log, step, 3000)
        synced = log.synced.sequence
        wrong.extend(f"synced is {synced}" for _ in range(synced not in indexed and synced > 0))
        if step % 20 == 0:
            log.roll()
    assert log.wait_synced()
    assert log.synced.sequence in indexed
    log.close()
    assert not wrong
    assert indexed >= set(range(1, 159))
    bare.close()


def test_with_durability_process_nothing_is_synced_until_it_is_demanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare, synced = BareLog(tmp_path), list[str]()
    sync = os.fdatasync

    def counting(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        sync(fd)

    log = bare.open()
    append_step(log, 1)
    log._preallocator.stop()  # it syncs the files that it makes
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", counting)
        for step in range(2, 30):
            append_step(log, step)
        assert synced == []
        assert log.synced.step == 0
        log.demand_sync()
        assert log.wait_synced()
        assert log.synced.step == 29
        assert log._segment is not None
        assert str(log._segment.path) in synced
    log.close()
    bare.close()


@pytest.mark.parametrize("point", ["log.begin", "log.write", "log.before_commit"])
@pytest.mark.parametrize("error", ["enospc", "eio"])
def test_a_failed_append_leaves_the_log_as_it_was(bare: BareLog, point: str, error: str) -> None:
    log = bare.open()
    append_step(log, 1)
    position = log.position
    with failing(f"{point}={error}"), pytest.raises((LogUnavailable, OSError), match=point):
        append_step(log, 2)
    assert log.position == position
    append_step(log, 2)
    log.close()
    assert bare.contents() == expected(range(1, 3))


def until(has_come: Callable[[], bool]) -> None:
    """Wait for what a background thread does."""
    end = time.monotonic() + 60
    while not has_come():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.mark.parametrize("point", ["log.sync", "log.index", "log.seal", "catalog.before_commit"])
def test_a_failure_behind_the_training_thread_latches(tmp_path: Path, point: str) -> None:
    bare = BareLog(tmp_path, JournalConfig(durability="machine", segment_bytes=MIB))
    log = bare.open()
    append_step(log, 1)
    assert log.wait_synced()
    if point not in ("log.sync", "log.index"):  # before: the thread behind may write watermarks to the catalog at any time
        append_step(log, 2)
        assert log.wait_synced()
    with failing(f"{point}=eio"):
        if point in ("log.sync", "log.index"):
            append_step(log, 2)
        log.roll()
        until(lambda: log.failure is not None)
        assert log.wait_synced() is False
        with pytest.raises(LogUnavailable, match=point):
            log.close()
    with pytest.raises(LogUnavailable, match=point):
        log.begin(NO_TENSORS)
    assert log.boundary.step == 2
    assert point not in ("log.sync", "log.index") or log.synced.step == 1
    assert bare.contents() == expected(range(1, 3))
    bare.close()


def test_synced_trails_committed_and_reaches_it(tmp_path: Path) -> None:
    bare = BareLog(tmp_path, JournalConfig(durability="machine", segment_bytes=MIB))
    log = bare.open()
    for step in range(1, 60):
        append_step(log, step)
        assert log.synced.step <= log.boundary.step == step
    assert log.wait_synced()
    assert log.synced == log.boundary
    log.close()
    bare.close()


def test_synced_never_claims_a_segment_that_was_not_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sync thread looks while `close` hands over the last segment."""
    bare = BareLog(tmp_path, JournalConfig(durability="machine", segment_bytes=MIB))
    log, held, claims = bare.open(), threading.Event(), []
    commit = GroupCommit._commit_group

    def watched(self: GroupCommit, work: SyncWork) -> None:
        held.wait()
        covered = [segment for segment, _ in work.sealing] + ([work.segment] if work.segment is not None else [])
        claims.append((work.boundary.sequence > self.state.synced.sequence, bool(covered)))
        commit(self, work)

    monkeypatch.setattr(GroupCommit, "_commit_group", watched)
    append_step(log, 1)
    closing = threading.Thread(target=log.close)
    closing.start()
    held.set()
    closing.join()
    assert all(covered for advances, covered in claims if advances)
    bare.close()


def test_nothing_is_committed_between_the_flush_that_is_demanded_and_the_groups_that_are_synced_behind_it(
    bare: BareLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be taken for synced, and be in no flush."""
    log, here, committed = bare.open(), threading.get_ident(), []
    append_step(log, 1)
    other, flush = threading.Thread(target=append_step, args=(log, 2)), os.fdatasync

    def flushing(fd: int) -> None:
        flush(fd)
        if threading.get_ident() == here and not committed:
            other.start()
            other.join(0.2)
            committed.append(log.boundary.step)

    monkeypatch.setattr(os, "fdatasync", flushing)
    log.demand_sync()
    other.join()
    assert committed == [1]
    assert log.wait_synced()
    assert log.synced.step == 2
    log.close()


def test_watermarks_wait_until_the_log_counts(bare: BareLog) -> None:
    log = bare.open(Position(5, 3, 99), writes_watermarks=False)
    log.begin(NO_TENSORS).abort()
    log.close()
    assert bare.catalog is not None
    assert bare.catalog.watermarks().committed == 0


def test_a_segment_whose_first_entry_fails_can_be_reused(bare: BareLog) -> None:
    log = bare.open()
    with failing("log.before_commit=enospc@1"), pytest.raises(LogUnavailable):
        append_step(log, 1)
    append_step(log, 1)
    log.close()
    assert bare.contents() == expected(range(1, 2))


def test_a_body_that_cannot_be_encoded_is_refused_and_the_log_goes_on(bare: BareLog) -> None:
    log = bare.open()
    append_step(log, 1)
    record = log.begin(ONES)
    with pytest.raises(UnencodableState, match=r"schedule.*function"):
        log.commit(record, EntryKind.STEP, 2, whole(log, {"schedule": lambda: 1}))
    assert record.is_open
    append_step(log, 2)
    log.close()
    assert bare.contents() == expected(range(1, 3))


def test_groups_are_apart_unless_somebody_waits_or_the_log_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = BareLog(tmp_path, JournalConfig(durability="machine", segment_bytes=MIB))
    log = bare.open()
    append_step(log, 1)
    until(lambda: log.synced.step == 1)
    monkeypatch.setattr(group_commit, "GROUP_SECONDS", 600.0)  # only now: the first group may hold the segment alone
    append_step(log, 2)
    time.sleep(0.05)
    assert log.synced.step == 1
    assert log.wait_synced(10.0)
    assert log.synced.step == 2
    append_step(log, 3)
    log.close()
    assert bare.contents() == expected(range(1, 4))
    bare.close()
