"""A record is there once its head is, which is written last; its file becomes larger if it must."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from tests.log.entries import ONES, expected, whole
from tests.support.bare_log import BareLog, append_step, expected_step
from tranlogs.base.config import RECORD_SLACK_BYTES
from tranlogs.base.errors import LogUnavailable
from tranlogs.base.types import dense
from tranlogs.log.layout import Payload
from tranlogs.log.reader import SegmentReader
from tranlogs.log.record_format import HEAD, EntryKind
from tranlogs.log.scanner import scan
from tranlogs.log.segment_file import SegmentFile


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
    assert kept.pieces is not None
    assert dropped.pieces is not None
    assert kept.pieces.offset == dropped.pieces.offset
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
    assert record.pieces is not None
    assert record.pieces.segment.path == path
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
