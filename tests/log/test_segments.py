"""Segment files: blocks allocated before their records, recycled without a trace, prepared one ahead."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import numpy as np
import pytest

from tests.support.bare_log import BareLog, append_step, expected_step
from tests.support.record_rows import packed_head
from tests.support.toy import ToyTrainer, open_toy
from tests.support.waiting import wait_until
from tranlogs.base.config import MIB, SEGMENT_STEP_BYTES, SPACE_PLENTY_BYTES, JournalConfig
from tranlogs.base.errors import LogUnavailable
from tranlogs.base.types import dense
from tranlogs.catalog import SegmentRow
from tranlogs.log import preallocator
from tranlogs.log import segment_file as files
from tranlogs.log.layout import Payload
from tranlogs.log.record_body import EncodedContent
from tranlogs.log.record_format import HEAD, Location, Position, RecordKind, extent_end
from tranlogs.log.scanner import scan
from tranlogs.log.segment_file import parse_segment_name

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


# The scanner finds what was committed by plain reads, and nothing else, also while it is written.


def only_segment(bare: BareLog) -> tuple[Path, SegmentRow]:
    assert bare.catalog is not None
    (row,) = [row for row in bare.catalog.segments() if row.state != "ready"]
    return bare.folder / "log" / row.file, row


def filled(bare: BareLog, steps: int = 10, size: int = 3000) -> tuple[Path, SegmentRow]:
    log = bare.open()
    for step in range(1, steps + 1):
        append_step(log, step, size)
    log.close()
    return only_segment(bare)


def sequences(found: list[Location]) -> list[int]:
    return [location.head.sequence for location in found]


def test_bytes_of_a_tensor_are_never_taken_for_an_entry(bare: BareLog) -> None:
    """A tensor that holds a whole segment of another run, at all offsets in a block."""
    path, row = filled(bare, steps=5, size=500)
    other = np.fromfile(path, np.uint8)[: row.used_bytes]
    second = BareLog(bare.folder / "second")
    log = second.open()
    tensors = [(f"w{shift}", dense(np.roll(other, shift))) for shift in range(0, 64, 8)]
    log.append(Payload.of(tensors), EncodedContent(RecordKind.STEP, 1, log.encoder.whole({}, None)))
    log.close()
    path, row = only_segment(second)
    assert sequences(scan(path, row.number)) == [0, 1]
    assert sequences(scan(path, row.number, last_sequence=1)) == [0, 1]
    second.close()


@pytest.mark.parametrize("count", [1, 3])
def test_a_damaged_head_in_the_middle_hides_no_other(bare: BareLog, count: int) -> None:
    path, row = filled(bare)
    found = scan(path, row.number)
    with path.open("r+b") as file:
        for victim in found[6 : 6 + count]:
            file.seek(victim.offset)
            file.write(b"\xa5" * HEAD.size)
    assert scan(path, row.number) == found[:6] + found[6 + count :]
    assert scan(path, row.number, last_sequence=row.last_sequence) == found[:6] + found[6 + count :]
    assert scan(path, row.number, start=found[6].offset) == found[6 + count :]


def test_an_older_head_behind_the_newest_is_passed_over(bare: BareLog) -> None:
    """A record of this segment whose place was never written again, as a rolled-back disk block has it."""
    path, row = filled(bare)
    found = scan(path, row.number)
    raw = path.read_bytes()[found[3].offset : found[4].end]
    with path.open("r+b") as file:
        file.seek(found[-1].end)
        file.write(raw)
    assert scan(path, row.number) == found


def _segment(trainer: ToyTrainer) -> tuple[Path, int]:
    (path,) = (path for path in trainer.journal.paths.log.glob("*.seg") if _id(path) and scan(path, _id(path)))
    return path, _id(path)


def _id(path: Path) -> int:
    named = parse_segment_name(path.name)
    assert named is not None
    return named[1]


def test_a_writer_that_overtakes_the_scan_leaves_no_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = JournalConfig(durability="process", segment_bytes=32 * MIB)
    trainer = open_toy(tmp_path / "run", sizes=(7, 300, 3000), config=config)
    trainer.recover()
    trainer.train(20)
    path, segment_id = _segment(trainer)
    read, is_writing = os.pread, False

    def pread(fd: int, size: int, offset: int) -> bytes:
        nonlocal is_writing
        if not is_writing and size > 4096 and trainer.journal.step < 400:
            is_writing = True
            data = read(fd, size, offset)
            trainer.train(trainer.journal.step + 20)  # after this window, before the next
            is_writing = False
            return data
        return read(fd, size, offset)

    monkeypatch.setattr("tranlogs.log.scanner.os.pread", pread)
    found = scan(path, segment_id)
    monkeypatch.undo()
    written = scan(path, segment_id)
    assert len(written) >= len(found) > 20
    numbers = [location.head.sequence for location in found]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert found == written[: len(found)]
    trainer.journal.close()
