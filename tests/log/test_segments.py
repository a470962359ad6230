"""Segment files: allocated before use, recycled without a trace, prepared one ahead."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.support.bare_log import BareLog, append_step, expected_step
from tranlogs.base.config import MIB, SPARE_FILES_MAX
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


def test_a_file_that_somebody_reads_is_neither_recycled_nor_deleted(tmp_path: Path) -> None:
    spare, path = used_spare(tmp_path), tmp_path / files.segment_name(2, 222)
    before = spare.read_bytes()
    fd = os.open(spare, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    assert files.recycle(spare, path, 2, 222, MIB) is None
    assert not files.delete(spare)
    assert spare.read_bytes() == before
    os.close(fd)
    segment = files.recycle(spare, path, 2, 222, MIB)
    assert segment is not None
    segment.close()
    assert files.delete(path)
    assert not path.exists()
    assert files.delete(path)


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
