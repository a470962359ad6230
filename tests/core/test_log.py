"""The write-ahead log: what is committed is found, what is not is not, failures latch, segments roll."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tranlogs.wal import entry_writer

from tranlogs.catalog import SegmentRow, Tables
from tranlogs.config import GROUP_BYTES_MAX, MIB, TINY_BYTES_MAX, JournalConfig
from tranlogs.errors import LogUnavailable, UnencodableState
from tranlogs.log.reader import Entry, SegmentReader
from tranlogs.log.record import EntryKind, Position
from tranlogs.log.segment_file import Segment
from tranlogs.log.writer import WriteAheadLog
from tranlogs.testing.bare_log import BareLog, append_step, expected_step
from tranlogs.testing.faults import failing
from tranlogs.types import Array, Piece, SparseArray, TensorSpec, dense


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareLog]:
    made = BareLog(tmp_path)
    yield made
    made.close()


def expected(steps: range, size: int = 100) -> list[object]:
    return [entry for step in steps for entry in expected_step(step, size)]


def only_entry(bare: BareLog) -> tuple[SegmentReader, Entry]:
    (link,) = bare.links()
    reader = SegmentReader(link.segment.path)
    return reader, reader.decode(link.location)


def test_a_segment_is_closed_before_the_catalog_calls_it_sealed(bare: BareLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on it may be retired, and its file made a new segment, by other threads."""
    closed, sealed = set[str](), list[tuple[str, bool]]()
    close, put = Segment.close, Tables.put

    def closing(segment: Segment) -> None:
        close(segment)
        closed.add(segment.path.name)

    def putting(tables: Tables, key: str, row: object) -> None:
        if isinstance(row, SegmentRow) and row.state == "sealed":
            sealed.append((row.file, row.file in closed))
        put(tables, key, row)

    monkeypatch.setattr(Segment, "close", closing)
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
    writer = log.begin(10_000, 1)
    writer.add("w", dense(np.ones(1000)))
    writer.abort()
    assert not writer.is_open
    writer = log.begin(10_000, 1)
    writer.add("w", dense(np.ones(1000)))
    append_step(log, 2)  # another entry begins: the open one is dropped
    assert not writer.is_open
    log.close()
    assert bare.contents() == expected(range(1, 3))


def test_closing_drops_an_open_entry(bare: BareLog) -> None:
    log = bare.open()
    append_step(log, 1)
    log.begin(100, 1).add("w", dense(np.ones(10)))
    log.close()
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


def test_an_entry_larger_than_a_segment_gets_a_larger_segment(bare: BareLog) -> None:
    log = bare.open()
    append_step(log, 1)
    append_step(log, 2, 500_000)
    append_step(log, 3)
    log.close()
    assert bare.contents() == expected_step(1) + expected_step(2, 500_000) + expected_step(3)


def test_a_segment_rolls_by_age(tmp_path: Path) -> None:
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


def test_many_tiny_tensors_share_values(bare: BareLog) -> None:
    log = bare.open()
    tensors = [(f"w{i}", dense(np.full(i % 700, i, np.float32))) for i in range(2000)]
    log.append(EntryKind.STEP, 1, list(tensors), {})
    log.append(EntryKind.STEP, 2, list(tensors), {})
    log.close()
    for _, _, found, _ in bare.contents():
        assert found == {name: array.data.tobytes() for name, array in tensors}
    first, second = bare.links()
    assert second.location.head.length < first.location.head.length  # descriptions are written once a segment


@pytest.mark.parametrize(
    "nbytes", [TINY_BYTES_MAX - 1, TINY_BYTES_MAX, GROUP_BYTES_MAX - 1, GROUP_BYTES_MAX, GROUP_BYTES_MAX + 1]
)
def test_sizes_around_the_limits_come_back(bare: BareLog, nbytes: int) -> None:
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    log = bare.open()
    log.append(EntryKind.STEP, 1, [("a", dense(data)), ("b", dense(data[:7])), ("c", dense(data))], {})
    log.close()
    assert bare.contents()[0][2] == {"a": data.tobytes(), "b": data[:7].tobytes(), "c": data.tobytes()}


def test_a_tensor_above_the_largest_value_is_split_and_joined(bare: BareLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_writer, "VALUE_BYTES_MAX", 100_000)
    values = np.random.default_rng(0).standard_normal((111, 333))
    permuted = Array("float64", (333, 111), dense(values).data, (1, 333))
    log = bare.open()
    log.append(EntryKind.STEP, 1, [("w", dense(values)), ("p", permuted)], {})
    log.close()
    reader, entry = only_entry(bare)
    with reader:
        assert len(entry.frames_of("w")) == 3
        whole, other = entry.read("w"), entry.read("p")
    assert isinstance(whole, Array)
    assert isinstance(other, Array)
    assert (whole.shape, whole.data.tobytes()) == ((111, 333), values.tobytes())
    assert (other.shape, other.strides, other.data.tobytes()) == ((333, 111), (1, 333), values.tobytes())


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
    writer = log.begin(10_000, 6)
    writer.add("permuted", permuted)
    writer.add("scalar", scalar)
    writer.add("empty", empty)
    writer.add("sparse", sparse)
    writer.add("box", box)
    writer.commit(EntryKind.STEP, 1, {"far": np.arange(5000)})
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
        assert entry.frames_of("box")[0].spec == TensorSpec("box", "float64", (8, 3), None, piece)
        part = entry.read("box")
        assert isinstance(part, Array)
        assert (part.shape, part.whole, part.piece) == ((2, 3), (8, 3), piece)
        assert part.data.tobytes() == box.data.tobytes()
        assert np.array_equal(entry.body()["far"], np.arange(5000))


def test_unchanged_arrays_of_boundaries_are_stored_once_a_segment(bare: BareLog) -> None:
    big = np.random.default_rng(0).standard_normal(20_000)
    log = bare.open()
    log.append(EntryKind.BOUNDARY, 0, [], {"ema": big, "n": 0})
    before = log.bytes_written
    for n in range(1, 6):
        log.append(EntryKind.BOUNDARY, 0, [], {"ema": big, "n": n})
    assert log.bytes_written - before < big.nbytes // 10
    log.roll()
    log.append(EntryKind.BOUNDARY, 0, [], {"ema": big + 1, "n": 6})
    log.close()
    bodies = [body for _, _, _, body in bare.contents()]
    assert [body["n"] for body in bodies] == list(range(7))
    assert all(np.array_equal(body["ema"], big + (body["n"] == 6)) for body in bodies)


def test_an_aborted_entry_does_not_spoil_what_later_ones_refer_to(bare: BareLog) -> None:
    big = np.random.default_rng(0).standard_normal(20_000)
    log = bare.open()
    append_step(log, 1)
    with failing("log.before_commit=enospc@1"), pytest.raises(LogUnavailable):
        log.append(EntryKind.BOUNDARY, 1, [("new", dense(big))], {"ema": big, "x": 1})
    log.append(EntryKind.BOUNDARY, 1, [("new", dense(big))], {"ema": big, "x": 2})
    log.append(EntryKind.BOUNDARY, 1, [("new", dense(big))], {"ema": big, "x": 3})
    log.close()
    for (_, _, tensors, body), n in zip(bare.contents()[2:], (2, 3), strict=True):
        assert tensors == {"new": big.tobytes()}
        assert np.array_equal(body["ema"], big)
        assert body["x"] == n


def test_decoding_may_start_behind_forgotten_definitions(bare: BareLog) -> None:
    big = np.random.default_rng(0).standard_normal(20_000)
    log = bare.open()
    for step in range(1, 7):
        if step == 4:
            log.definitions.forget()
        log.append(EntryKind.STEP, step, [("w", dense(np.full(5, step)))], {})
        log.append(EntryKind.BOUNDARY, step, [], {"ema": big, "step": step})
    log.close()
    links = [link for link in bare.links() if link.step >= 4]
    with SegmentReader(links[0].segment.path) as reader:
        entries = [reader.decode(link.location) for link in links]
        bodies = [entry.body() for entry in entries if entry.kind == EntryKind.BOUNDARY]
    assert [body["step"] for body in bodies] == [4, 5, 6]
    assert all(np.array_equal(body["ema"], big) for body in bodies)


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


@pytest.mark.parametrize("point", ["log.sync", "log.seal", "catalog.before_commit"])
def test_a_failure_behind_the_training_thread_latches(tmp_path: Path, point: str) -> None:
    bare = BareLog(tmp_path, JournalConfig(durability="machine", segment_bytes=MIB))
    log = bare.open()
    append_step(log, 1)
    assert log.wait_synced()
    if point != "log.sync":  # before: the thread behind may write watermarks to the catalog at any time
        append_step(log, 2)
        assert log.wait_synced()
    with failing(f"{point}=eio"):
        if point == "log.sync":
            append_step(log, 2)
        log.roll()
        until(lambda: log.failure is not None)
        assert log.wait_synced() is False
        with pytest.raises(LogUnavailable, match=point):
            log.close()
    with pytest.raises(LogUnavailable, match=point):
        log.begin(1, 1)
    assert log.boundary.step == 2
    assert point != "log.sync" or log.synced.step == 1
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
    settle = WriteAheadLog._settle

    def watched(self: WriteAheadLog, opened: list, sealing: list, current: object, target: Position) -> None:  # type: ignore[type-arg]
        held.wait()
        covered = [segment for segment, _ in sealing] + ([current] if current is not None else [])
        claims.append((target.sequence > self.synced.sequence, bool(covered)))
        settle(self, opened, sealing, current, target)  # type: ignore[arg-type]

    monkeypatch.setattr(WriteAheadLog, "_settle", watched)
    append_step(log, 1)
    closing = threading.Thread(target=log.close)
    closing.start()
    held.set()
    closing.join()
    assert all(covered for advances, covered in claims if advances)
    bare.close()


def test_watermarks_wait_until_the_log_counts(bare: BareLog) -> None:
    log = bare.open(Position(5, 3, 99), counts=False)
    log.begin(0, 0).abort()
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
    with pytest.raises(UnencodableState, match=r"schedule.*function"):
        log.append(EntryKind.STEP, 2, [("w", dense(np.ones(3)))], {"schedule": lambda: 1})
    writer = log.begin(100, 1)
    writer.add("w", dense(np.ones(3)))
    with pytest.raises(UnencodableState, match=r"schedule.*function"):
        writer.commit(EntryKind.STEP, 2, {"schedule": lambda: 1})
    append_step(log, 2)
    log.close()
    assert bare.contents() == expected(range(1, 3))
