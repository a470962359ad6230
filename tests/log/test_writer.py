"""What was committed is found, whatever its form; what was not is not; and failures leave the log as it was."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.bare_log import BareLog, append_step, expected, expected_step, whole
from tests.support.faults import failing
from tranlogs.base.config import MIB, RECORD_SLACK_BYTES, JournalConfig
from tranlogs.base.errors import LogUnavailable
from tranlogs.base.types import Bytes, TensorSpec, dense
from tranlogs.catalog import SegmentRow, Tables
from tranlogs.log.layout import NO_TENSORS, Layout, Payload
from tranlogs.log.payload_writer import pieces_of
from tranlogs.log.reader import SegmentReader
from tranlogs.log.record_body import EncodedContent
from tranlogs.log.record_format import HEAD, Position, RecordKind
from tranlogs.log.scanner import scan
from tranlogs.log.segment_file import SegmentFile


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


@pytest.mark.parametrize("point", ["log.begin", "log.write", "log.before_commit"])
@pytest.mark.parametrize("size", [100, 500_000])
def test_a_failed_append_leaves_the_log_as_it_was(bare: BareLog, point: str, size: int) -> None:
    """Whether the payload is written by this thread or beside it, and be it the first record or a later one."""
    log = bare.open()
    for step in (1, 2):
        position = log.position
        with failing(f"{point}=enospc"), pytest.raises((LogUnavailable, OSError), match=point):
            append_step(log, step, size)
        assert log.position == position
        append_step(log, step, size)
    log.close()
    assert bare.contents() == expected(range(1, 3), size)


def test_watermarks_wait_until_the_log_counts(bare: BareLog) -> None:
    log = bare.open(Position(5, 3, 99), writes_watermarks=False)
    log.begin(NO_TENSORS).abort()
    log.close()
    assert bare.catalog is not None
    assert bare.catalog.watermarks().committed == 0


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


def test_a_description_longer_than_the_slack_makes_the_file_larger(bare: BareLog) -> None:
    log = bare.open()
    append_step(log, 1)
    assert log._segment is not None
    path, size = log._segment.path, log._segment.size
    payload = Payload.of([("w", dense(np.random.default_rng(0).integers(0, 256, size - 2 * RECORD_SLACK_BYTES, np.uint8)))])
    record = log.begin(payload)
    assert record.segment is not None
    assert record.segment.path == path
    body = {"long": np.random.default_rng(1).bytes(3 * RECORD_SLACK_BYTES)}
    log.commit(record, EncodedContent(RecordKind.STEP, 2, whole(log, body)))
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


def noise(nbytes: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def payload_of(*contents: Bytes) -> Payload:
    return Payload(Layout([TensorSpec(f"w{i}", "uint8", (one.nbytes,)) for i, one in enumerate(contents)]), list(contents))


@given(st.lists(st.integers(0, 50), max_size=20), st.data())
def test_pieces_are_the_bytes_however_they_lie(sizes: list[int], data: st.DataObject) -> None:
    raw = noise(sum(sizes))
    cuts = sorted(data.draw(st.lists(st.integers(0, raw.nbytes), max_size=12)))
    ends = [*sorted(set(data.draw(st.lists(st.integers(1, raw.nbytes), max_size=12)))), raw.nbytes] if raw.nbytes else []
    ends = sorted(set(ends))
    buffers = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, raw.nbytes], strict=True)]
    found = pieces_of(buffers, ends)
    assert [piece.tobytes() for piece in found] == [raw[start:end].tobytes() for start, end in itertools.pairwise([0, *ends])]


def test_a_payload_is_released_once_whether_it_is_committed_or_not(tmp_path: Path) -> None:
    released, bare = list[str](), BareLog(tmp_path)
    log = bare.open()

    def begun(name: str) -> Payload:
        made = payload_of(noise(2 * MIB))
        made.release = lambda: released.append(name)
        return made

    log.commit(log.begin(begun("committed")), EncodedContent(RecordKind.STEP, 1, log.encoder.whole({}, None)))
    aborted = log.begin(begun("aborted"))
    aborted.abort()
    aborted.abort()
    log.begin(begun("dropped"))
    with failing("log.before_commit=eio"), pytest.raises(LogUnavailable):
        log.commit(log.begin(begun("failed")), EncodedContent(RecordKind.STEP, 2, log.encoder.whole({}, None)))
    log.begin(begun("closed"))
    log.close()
    assert released == ["committed", "aborted", "dropped", "failed", "closed"]
    assert [(kind, step) for kind, step, *_ in bare.contents()] == [(RecordKind.STEP, 1)], "the others leave no trace"
    bare.close()


def test_segments_roll_before_they_are_full(bare: BareLog) -> None:
    bare.config = JournalConfig(durability="process", segment_bytes=3_333_333)
    log, size = bare.open(), 60_000
    for step in range(1, 40):
        append_step(log, step, size)
    log.close()
    assert len(bare.links()) == 78
    assert bare.contents() == expected(range(1, 40), size)
    assert bare.catalog is not None
    rows = bare.catalog.segments()
    assert len(rows) > 1
    assert {row.state for row in rows} == {"sealed"}
    assert all(row.used_bytes <= row.size == (bare.folder / "log" / row.file).stat().st_size for row in rows)
    assert rows[-1].used_bytes == rows[-1].size  # `close` gives back what the last one does not need
