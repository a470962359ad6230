"""One segment: a preallocated file to which records are appended with `pwrite`.

Invariants
* The blocks of a record are allocated before it is written, so a full disk is an error before the record, not within it. The
  file has its full length from the start. Blocks that are not allocated yet are a hole at its end.
* A recycled file gets a new segment id and a new name. Its old records carry the old id. They cannot be taken for new
  records, so nothing has to be erased.
* The head of a record is written after the rest of the record. It lies within one page, so a killed process leaves the
  whole head or none of it.
* A file is not written to after it is sealed.

The catalog has a row for each segment: ready, open, sealed, retired.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ..base.atomic_files import is_disk_full, sync_folder
from ..base.clock import Clock
from ..base.errors import LogUnavailable, RunLost
from ..base.failpoints import hit
from ..base.types import Bytes
from ..catalog import Catalog, Change, SegmentRow, Tables, segment_key
from .record_format import HEAD, Position, unpack_head

_VIEWS_MAX = 512  # buffers in one system call; IOV_MAX is 1024


class SegmentFile:
    """An open segment file. One thread appends; `sync` may run in another. If the disk is full or fails, they raise OSError.

    Attributes:
        ordinal: number of the segment in its journal; a newer segment has a larger number.
        segment_id: random 64 bits that every record repeats.
        allocated: the blocks up to this offset are allocated.
        used_bytes: where the next record starts.
        base: position before the first record; set when the log opens the segment.
    """

    def __init__(self, path: Path, ordinal: int, segment_id: int, size: int, allocated: int) -> None:
        self.path, self.ordinal, self.segment_id = path, ordinal, segment_id
        self.size, self.allocated = size, allocated
        self.used_bytes = 0
        self.base = Position()
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def has_room(self, nbytes: int) -> bool:
        """Return True if an extent of `nbytes` fits after the last record."""
        return self.used_bytes + nbytes <= self.size

    def allocate(self, end: int, step: int = 1) -> None:
        """Allocate the blocks of a record that ends at `end`. Enlarge the file if it is shorter.

        Args:
            step: allocate up to a multiple of this many bytes, as far as the file and the disk have room.
        """
        if end <= self.allocated:
            return
        for wanted in (max(end, min(-(-end // step) * step, self.size)), end):
            try:
                os.posix_fallocate(self._fd, self.allocated, wanted - self.allocated)
            except OSError as error:
                if wanted == end or not is_disk_full(error):
                    raise
            else:
                self.allocated, self.size = wanted, max(self.size, wanted)
                return

    def write(self, buffers: Sequence[Bytes | bytes], offset: int) -> None:
        """Write flat buffers of bytes one after another, starting at `offset`."""
        hit("log.write")
        for first in range(0, len(buffers), _VIEWS_MAX):
            some = buffers[first : first + _VIEWS_MAX]
            nbytes, done = sum(map(len, some)), os.pwritev(self._fd, some, offset)  # type: ignore[arg-type]
            if done < nbytes:
                self._write_rest(some, offset, done)
            offset += nbytes

    def write_head(self, head: bytes, offset: int) -> None:
        """Write a record's head, which makes the record valid."""
        if os.pwrite(self._fd, head, offset) != len(head):
            raise OSError(errno.EIO, "a record's head was written in part only")

    def _write_rest(self, buffers: Sequence[Bytes | bytes], offset: int, done: int) -> None:
        """Write what a system call has left of these buffers after `done` bytes."""
        views = [memoryview(buffer).cast("B") for buffer in buffers]  # type: ignore[arg-type]
        while True:
            if done == 0:
                raise OSError(errno.EIO, "the system call wrote nothing")
            offset += done
            while views and done >= views[0].nbytes:
                done -= views.pop(0).nbytes
            if not views:
                return
            views[0] = views[0][done:]
            done = os.pwritev(self._fd, views, offset)

    def sync(self) -> None:
        """Flush everything written so far to the disk."""
        hit("log.sync")
        os.fdatasync(self._fd)

    def demand_file(self) -> None:
        """Check that the file was not deleted.

        Raises:
            RunLost: it was deleted, with all that was written to it.
        """
        if os.fstat(self._fd).st_nlink == 0:
            raise RunLost(
                f"{self.path} was deleted while it was written (moved to another file system?)",
                "no files of the run are deleted",
                loss="what was logged since the last checkpoint that is left",
            )

    def truncate(self, *, sync: bool = False) -> None:
        """Give unused space at the end of the file back to the file system; with `sync`, before its row is written."""
        with suppress(OSError):  # The space is freed when the segment is pruned.
            os.ftruncate(self._fd, self.used_bytes)
            self.size = self.allocated = self.used_bytes
            if sync:
                os.fsync(self._fd)

    def close(self) -> None:
        """Close the file without flushing it."""
        fd, self._fd = self._fd, -1  # Before the close, so that an interrupt cannot lead to a second close of a reused number.
        if fd >= 0:
            with suppress(OSError):  # from a failed disk
                os.close(fd)


def segment_name(ordinal: int, segment_id: int) -> str:
    """Return the file name of a segment, made of its ordinal and segment id."""
    return f"{ordinal:010d}-{segment_id:016x}.seg"


def parse_segment_name(name: str) -> tuple[int, int] | None:
    """Return the ordinal and the segment id in a segment's file name; None if the name is not that of a segment."""
    ordinal, dash, rest = name.partition("-")
    number, dot, suffix = rest.partition(".")
    if not (dash and dot and suffix == "seg" and len(number) == 16 and ordinal.isdigit()):
        return None
    try:
        return int(ordinal), int(number, 16)
    except ValueError:
        return None


def new_segment_id() -> int:
    """Return a random number. Old records of a recycled file cannot be taken for new ones, because their id differs."""
    return int.from_bytes(os.urandom(8), "little")


def create(path: Path, ordinal: int, segment_id: int, size: int, allocated: int) -> SegmentFile:
    """Create a segment file of `size` bytes whose first `allocated` bytes have blocks.

    Raises:
        LogUnavailable: the disk is full or fails; the file is deleted.
    """
    try:
        hit("log.prepare")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(fd, 0, allocated)
            os.ftruncate(fd, size)
            os.fdatasync(fd)
        finally:
            os.close(fd)
        sync_folder(path.parent)
        return SegmentFile(path, ordinal, segment_id, size, allocated)
    except FileExistsError as error:
        raise LogUnavailable(f"{path}: cannot create the segment: the file exists already") from error
    except OSError as error:
        path.unlink(missing_ok=True)
        why = str(error)
        if error.errno == errno.EINVAL:
            why = "this file system cannot preallocate files; put the run on a local disk"
        raise LogUnavailable(f"{path}: cannot create a segment of {size} bytes: {why}") from error


def recycle(spare: Path, path: Path, ordinal: int, segment_id: int, size: int) -> SegmentFile | None:
    """Turn a retired file into an empty segment.

    Returns:
        The segment; None if another process has locked the file, because it reads or deletes it.

    Raises:
        LogUnavailable: the disk is full or fails.
    """
    try:
        try:
            fd = os.open(spare, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # The monitor has deleted the file in the meantime.
            return None
        try:
            if not _lock(fd, spare):
                return None
            hit("log.recycle")
            allocated = _fill_holes(fd, size)
            os.rename(spare, path)
            sync_folder(path.parent)
        finally:
            _unlock(fd)
        return SegmentFile(path, ordinal, segment_id, size, allocated)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise LogUnavailable(f"{spare}: cannot recycle the file: {error}") from error


def _fill_holes(fd: int, size: int) -> int:
    """Allocate all blocks of a file of `size` bytes; return up to where it has blocks, which is less if the disk is full."""
    os.ftruncate(fd, size)
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if not is_disk_full(error):
            raise
        return os.lseek(fd, 0, os.SEEK_HOLE)
    return size


def delete(path: Path) -> bool:
    """Delete a retired file; return False if another process reads or recycles it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        if not _lock(fd, path):
            return not path.exists()
        hit("log.unlink")
        path.unlink(missing_ok=True)
        return True
    finally:
        _unlock(fd)


def _lock(fd: int, path: Path) -> bool:
    """Lock a file exclusively; return False if another process uses the file, or if it was deleted in the meantime."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(fd).st_ino == os.stat(path).st_ino
    except OSError:
        return False


def _unlock(fd: int) -> None:
    """Unlock and close a file. If it were only closed, a child that was forked in the meantime would keep the lock."""
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def is_unwritten(path: Path) -> bool:
    """Return True if the file system knows that nothing was written to a preallocated file.

    Raises:
        OSError: the file cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.fstat(fd).st_size > 0 and os.lseek(fd, 0, os.SEEK_DATA) < 0
    except OSError as error:
        if error.errno == errno.ENXIO:  # there is no data
            return True
        if error.errno == errno.EINVAL:  # the file system has no such operation
            return False
        raise
    finally:
        os.close(fd)


def was_written(path: Path, segment_id: int) -> bool:
    """Return True if the file has been written to since it was created or recycled as this segment.

    The first record of a segment lies at the start of its file. A new file has zeros there, and a recycled file has the first
    record of its previous segment. Any other content was written for this segment, even if it is damaged.

    Raises:
        OSError: the file cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        start = os.pread(fd, HEAD.size, 0)
    finally:
        os.close(fd)
    if not any(start):
        return False
    head = unpack_head(start)
    return head is None or head.segment_id == segment_id


def record_opened(tables: Tables, segment: SegmentFile, created_at: float) -> None:
    """Record that a prepared segment is open; its first record follows the position `segment.base`.

    Args:
        created_at: time of creation, if the segment could not be listed when it was prepared.
    """
    base = segment.base
    row = tables.get(segment_key(segment.ordinal), SegmentRow)
    if row is None:
        name = segment.path.name
        row = SegmentRow(segment.ordinal, f"{segment.segment_id:016x}", name, segment.size, "ready", created_at=created_at)
    row = replace(row, state="open", timeline=base.timeline, base_sequence=base.sequence, base_step=base.step)
    tables.put(segment_key(segment.ordinal), row)


def record_size(tables: Tables, segment: SegmentFile) -> None:
    """Record that an open segment's file is about to be truncated after its last record.

    The catalog is updated before the file is truncated. If the process ends in between, the file is longer than in its row,
    which is valid for an open segment. A shorter file would be reported as damaged.
    """
    row = tables.get(segment_key(segment.ordinal), SegmentRow)
    assert row is not None
    tables.put(segment_key(segment.ordinal), replace(row, size=segment.used_bytes))


def record_sealed(tables: Tables, clock: Clock, segment: SegmentFile, last: Position) -> None:
    """Record that nothing more is written to a segment. Its file is closed: from now on it may be retired and recycled."""
    row = tables.get(segment_key(segment.ordinal), SegmentRow)
    assert row is not None
    row = replace(
        row,
        state="sealed",
        last_sequence=last.sequence,
        last_step=last.step,
        used_bytes=segment.used_bytes,
        size=segment.size,
        sealed_at=clock.now(),
    )
    tables.put(segment_key(segment.ordinal), row)


def unlink_retired(catalog: Catalog, folder: Path, make: Callable[[Change], bool]) -> int:
    """Delete the files of retired segments, and their catalog rows.

    A file that another process reads or recycles is left for the next call.

    Returns:
        The number of bytes that were freed.
    """
    freed, deleted = 0, Change()
    for row in catalog.segments():
        if row.state == "retired" and delete(folder / row.file):
            freed += row.size
            deleted.expects[segment_key(row.ordinal)] = row
            deleted.deletes.append(segment_key(row.ordinal))
    if deleted:
        make(deleted)
    return freed
