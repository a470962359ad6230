"""Segment files: blocks allocated before their records, recycled without a trace, prepared one ahead."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.support.bare_log import BareLog, append_step, expected_step
from tests.support.record_rows import packed_head
from tests.support.waiting import wait_until
from tranlogs.base.config import MIB, SEGMENT_STEP_BYTES, SPACE_PLENTY_BYTES, JournalConfig
from tranlogs.base.errors import LogUnavailable
from tranlogs.log import preallocator
from tranlogs.log import segment_file as files
from tranlogs.log.reader import SegmentReader
from tranlogs.log.record_format import HEAD, Position, RecordKind, extent_end
from tranlogs.log.scanner import scan

VALUE = np.random.default_rng(0).integers(0, 256, 4000, np.uint8)


def put(segment: files.SegmentFile, sequence: int, value: np.ndarray = VALUE) -> int:
    """Write a record; returns where it starts."""
    at = segment.used_bytes
    description = b"description"
    head = packed_head(segment.segment_id, sequence, sequence, RecordKind.STEP, value.nbytes, description, 0)
    segment.write([value, description], at + len(head))
    segment.write_head(head, at)
    segment.used_bytes = extent_end(at, value.nbytes, len(description))
    return at


def used_spare(tmp_path: Path) -> Path:
    path = tmp_path / files.segment_name(1, 111)
    segment = files.create(path, 1, 111, MIB, MIB)
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
    segment = files.create(path, 1, 111, MIB, MIB)
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


def log_bytes_on_disk(bare: BareLog) -> int:
    return sum(path.stat().st_blocks * 512 for path in (bare.folder / "log").glob("*.seg"))


def large_files(tmp_path: Path) -> BareLog:
    return BareLog(tmp_path, JournalConfig(durability="process", segment_bytes=8 * MIB))


def test_a_young_log_takes_little_more_than_its_records_and_a_disk_that_fills_up_gives_it_whole_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = large_files(tmp_path)
    log, size = bare.open(), 8000
    for step in range(1, 31):
        append_step(log, step, size)
        assert log_bytes_on_disk(bare) <= log.bytes_written + 3 * SEGMENT_STEP_BYTES
    monkeypatch.setattr(preallocator, "free_bytes", lambda _: SPACE_PLENTY_BYTES)
    for step in range(31, 36):
        append_step(log, step, size)
    log._preallocator.take()  # waits until the next file is there, which takes the place of one without blocks
    paths = sorted((bare.folder / "log").glob("*.seg"))[:2]
    assert [path.stat().st_blocks * 512 >= 8 * MIB for path in paths] == [True, True]
    log.close()
    assert bare.contents() == [entry for step in range(1, 36) for entry in expected_step(step, size)]
    bare.close()


def test_a_record_without_blocks_goes_into_the_next_file_or_is_refused_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    bare, small, large = large_files(tmp_path), 2000, 60_000
    log, position = bare.open(), Position()
    for step in range(1, 6):
        append_step(log, step, small)
    wait_until(lambda: log._preallocator._ready is not None, "the next file")
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        first, step = log._segment, 6
        while log._segment is first:
            append_step(log, step, small)
            position, step = log.position, step + 1
        with pytest.raises(LogUnavailable, match="No space left"):
            append_step(log, step, large)
    assert log.position == position
    for later in range(step, step + 3):
        append_step(log, later, large)
    log.close()
    expected = [(one, small) for one in range(1, step)] + [(one, large) for one in range(step, step + 3)]
    assert bare.contents() == [entry for one, size in expected for entry in expected_step(one, size)]
    bare.close()


def test_a_recycled_file_whose_hole_cannot_be_filled_is_used_up_to_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path, segment = tmp_path / files.segment_name(1, 111), None
    files.create(path, 1, 111, MIB, SEGMENT_STEP_BYTES).close()
    path.write_bytes(bytes(SEGMENT_STEP_BYTES))
    os.truncate(path, MIB)
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    segment = files.recycle(path, tmp_path / files.segment_name(2, 222), 2, 222, MIB)
    assert segment is not None
    assert (segment.size, segment.allocated) == (MIB, SEGMENT_STEP_BYTES)
    segment.close()
