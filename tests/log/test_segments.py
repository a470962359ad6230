"""Segment files: allocated before use, recycled without a trace, prepared one ahead."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.support.bare_log import BareLog, append_step, expected_step
from tests.support.faults import failing
from tranlogs.base.config import MIB, SPARE_FILES_MAX
from tranlogs.base.errors import LogUnavailable
from tranlogs.catalog import SegmentRow, segment_key
from tranlogs.log import segment_file as files
from tranlogs.log.reader import SegmentReader
from tranlogs.log.record_format import HEAD, EntryKind, extent_end, pack_head
from tranlogs.log.scanner import scan

VALUE = np.random.default_rng(0).integers(0, 256, 4000, np.uint8)


def put(segment: files.SegmentFile, sequence: int, value: np.ndarray = VALUE) -> int:
    """Write a record; returns where it starts."""
    at = segment.used_bytes
    description = b"description"
    head = pack_head(segment.segment_id, sequence, sequence, EntryKind.STEP, value.nbytes, description, 0)
    segment.write([value, description], at + len(head))
    segment.write_head(head, at)
    segment.used_bytes = extent_end(at, value.nbytes, len(description))
    return at


def test_what_has_room_fits_and_what_has_not_makes_the_file_larger(tmp_path: Path) -> None:
    segment = files.create(tmp_path / files.segment_name(1, 2), 1, 2, MIB)
    sequence = 0
    while segment.has_room(64 + VALUE.nbytes + 64):
        sequence += 1
        put(segment, sequence)
    assert sequence > 200
    assert segment.used_bytes <= segment.size == segment.path.stat().st_size == MIB
    assert segment.has_room(MIB - segment.used_bytes)
    assert not segment.has_room(MIB - segment.used_bytes + 1)
    segment.extend(MIB)
    assert segment.size == MIB
    segment.extend(MIB + 100_000)
    stat = segment.path.stat()
    assert (segment.size, stat.st_size, stat.st_blocks * 512 >= stat.st_size) == (MIB + 100_000, MIB + 100_000, True)
    segment.truncate()
    assert segment.size == segment.path.stat().st_size == segment.used_bytes
    assert len(scan(segment.path, 2)) == sequence
    segment.close()


@pytest.mark.parametrize("error", ["enospc", "eio"])
def test_a_failed_preparation_leaves_nothing_behind(tmp_path: Path, error: str) -> None:
    with failing(f"log.prepare={error}"), pytest.raises(LogUnavailable, match="cannot create a segment of 1048576 bytes"):
        files.create(tmp_path / files.segment_name(1, 2), 1, 2, MIB)
    assert list(tmp_path.iterdir()) == []


def used_spare(tmp_path: Path) -> Path:
    path = tmp_path / files.segment_name(1, 111)
    segment = files.create(path, 1, 111, MIB)
    for sequence in range(1, 50):
        put(segment, sequence)
    segment.close()
    return path


@pytest.mark.parametrize("change", ["truncated", "holes"])
def test_a_recycled_file_has_all_its_blocks_again(tmp_path: Path, change: str) -> None:
    spare, path = used_spare(tmp_path), tmp_path / files.segment_name(2, 222)
    os.truncate(spare, 0 if change == "holes" else 5000)
    os.truncate(spare, MIB if change == "holes" else 5000)
    segment = files.recycle(spare, path, 2, 222, MIB)
    assert segment is not None
    stat = path.stat()
    assert (segment.size, stat.st_size, stat.st_blocks * 512 >= MIB) == (MIB, MIB, True)
    segment.close()


def test_records_of_a_former_life_end_no_scan_and_enter_none(tmp_path: Path) -> None:
    """Old heads lie behind, and also within, what was written since: at the very places where the next record is looked for."""
    spare, path = used_spare(tmp_path), tmp_path / files.segment_name(2, 222)
    segment = files.recycle(spare, path, 2, 222, MIB)
    assert segment is not None
    assert files.was_written(path, 111)
    offsets = []
    for sequence in range(1, 20):
        offsets.append(put(segment, sequence))
        assert [location.offset for location in scan(path, 222)] == offsets
        assert [location.head.sequence for location in scan(path, 111)] == list(range(sequence + 1, 50))
    segment.close()


def test_whether_a_file_was_written_is_told_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / files.segment_name(1, 111)
    segment = files.create(path, 1, 111, MIB)
    assert not files.was_written(path, 111)
    put(segment, 1)
    segment.close()
    assert files.was_written(path, 111)
    assert not files.was_written(path, 222)  # used again, and nothing written yet
    with path.open("r+b") as file:
        file.seek(20)
        file.write(b"\xff")
    assert files.was_written(path, 111)  # damaged: somebody's record, which must not be thrown away
    assert files.was_written(path, 222)
    with path.open("r+b") as file:
        file.write(bytes(HEAD.size))
    assert not files.was_written(path, 111)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        files.was_written(path, 111)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_amid_recycling_keeps_nobody_from_reading_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a worker of a data loader: it has the handle that the file was locked with, for as long as it lives."""
    children = []

    def fork(_: str) -> None:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            signal.pause()
        children.append(child)

    spare, path = used_spare(tmp_path), tmp_path / files.segment_name(2, 222)
    monkeypatch.setattr(files, "hit", fork)
    try:
        segment = files.recycle(spare, path, 2, 222, MIB)
        assert segment is not None
        SegmentReader(path).close()
        segment.close()
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_a_file_that_somebody_reads_is_not_recycled(tmp_path: Path) -> None:
    spare, path = used_spare(tmp_path), tmp_path / files.segment_name(2, 222)
    before = spare.read_bytes()
    fd = os.open(spare, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    assert files.recycle(spare, path, 2, 222, MIB) is None
    assert spare.read_bytes() == before
    os.close(fd)
    segment = files.recycle(spare, path, 2, 222, MIB)
    assert segment is not None
    segment.close()


def test_a_retired_file_is_deleted_unless_somebody_reads_it(tmp_path: Path) -> None:
    spare = used_spare(tmp_path)
    fd = os.open(spare, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    assert not files.delete(spare)
    assert spare.exists()
    os.close(fd)
    with failing("log.unlink=eio"), pytest.raises(OSError, match=r"log\.unlink"):
        files.delete(spare)
    assert files.delete(spare)
    assert not spare.exists()
    assert files.delete(spare)


def test_steps_logged_into_recycled_files_come_back(tmp_path: Path) -> None:
    bare = BareLog(tmp_path)
    log, position = bare.open(), None
    for step in range(1, 31):
        append_step(log, step, 2000)
        position = log.position
        if step % 5 == 0:  # `close` would truncate the last one, which is not used again then
            log.roll()
    log.close()
    assert bare.catalog is not None
    with bare.catalog.transaction() as tables:
        for row in tables.rows("segment/", SegmentRow):
            tables.put(segment_key(row.ordinal), SegmentRow(row.ordinal, row.segment_id, row.file, row.size, "retired"))
    before = {path.stat().st_ino for path in (tmp_path / "log").glob("*.seg")}
    log, used_again = bare.open(position), set[int]()
    for step in range(31, 61):
        append_step(log, step, 2000)
        assert log._segment is not None
        used_again |= before & {log._segment.path.stat().st_ino}
        log.roll()
    log.close()
    assert len(used_again) >= SPARE_FILES_MAX
    assert bare.contents() == [entry for step in range(31, 61) for entry in expected_step(step, 2000)]
    bare.close()
