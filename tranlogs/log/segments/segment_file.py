"""One segment: a preallocated file to which records are appended with `pwrite`.

Invariants
* The file's blocks are allocated before use: a full disk is an error at preparation, not in the middle of a record.
* A file that is used again gets another segment id and another name. Records of its former life carry the former id, so
  they cannot be taken for new ones, and nothing has to be erased.
* The head of a record is written after everything else of it. It lies within one page, so a killed process leaves the
  whole head or none.
* Nothing is written to a file after it was sealed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ...base.atomic_files import sync_folder
from ...base.errors import LogUnavailable
from ...base.failpoints import hit
from ...base.types import Bytes
from ..record import HEAD, unpack_head

_VIEWS_MAX = 512  # of one system call; IOV_MAX is 1024


class SegmentFile:
    """An open segment file. One thread appends; `sync` may run in another.

    Attributes:
        path: the file.
        ordinal: number of the segment in its journal; later ones are newer.
        segment_id: random 64 bits that every record repeats.
        size: allocated bytes.
        used_bytes: where the next record starts.
    """

    def __init__(self, path: Path, ordinal: int, segment_id: int, size: int) -> None:
        self.path, self.ordinal, self.segment_id, self.size = path, ordinal, segment_id, size
        self.used_bytes = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def has_room(self, nbytes: int) -> bool:
        """Return True if an extent of `nbytes` fits behind what is used."""
        return self.used_bytes + nbytes <= self.size

    def extend(self, end: int) -> None:
        """Allocate more, so that a record may end at `end`.

        Raises:
            OSError: the disk is full.
        """
        if end > self.size:
            os.posix_fallocate(self._fd, self.size, end - self.size)
            self.size = end

    def write(self, buffers: Sequence[Bytes | bytes], offset: int) -> None:
        """Write buffers one after another from `offset` on.

        Raises:
            OSError: the disk is full or fails.
        """
        hit("log.write")
        for first in range(0, len(buffers), _VIEWS_MAX):
            views = [memoryview(buffer).cast("B") for buffer in buffers[first : first + _VIEWS_MAX]]  # type: ignore[arg-type]
            offset = self._write(views, offset)

    def write_head(self, head: bytes, offset: int) -> None:
        """Write a record's head: the record counts from now on.

        Raises:
            OSError: the disk is full or fails.
        """
        if os.pwrite(self._fd, head, offset) != len(head):
            raise OSError(errno.EIO, "the head of a record could not be written")

    def _write(self, views: list[memoryview], offset: int) -> int:
        left = sum(view.nbytes for view in views)
        end = offset + left
        while left:
            done = os.pwritev(self._fd, views, end - left)
            if done == 0:
                raise OSError(errno.EIO, "nothing could be written")
            left -= done
            while views and done >= views[0].nbytes:
                done -= views.pop(0).nbytes
            if done:
                views[0] = views[0][done:]
        return end

    def sync(self) -> None:
        """Flush everything written so far to the disk.

        Raises:
            OSError: the disk fails.
        """
        hit("log.sync")
        os.fdatasync(self._fd)

    def truncate(self) -> None:
        """Give back what was allocated and not used."""
        with suppress(OSError):  # the space comes back when the segment is pruned
            os.ftruncate(self._fd, self.used_bytes)
            self.size = self.used_bytes

    def close(self) -> None:
        """Close the file. Nothing is flushed."""
        fd, self._fd = self._fd, -1  # first: an interrupt in between must not close somebody else's file later
        if fd >= 0:
            with suppress(OSError):  # of a disk that failed
                os.close(fd)


def segment_name(ordinal: int, segment_id: int) -> str:
    """Return the file name of a segment; it repeats what the records say."""
    return f"{ordinal:010d}-{segment_id:016x}.seg"


def parse_segment_name(name: str) -> tuple[int, int] | None:
    """Return (ordinal, segment id) of a segment's file name, None for other files."""
    ordinal, dash, rest = name.partition("-")
    number, dot, suffix = rest.partition(".")
    if not (dash and dot and suffix == "seg" and len(number) == 16 and ordinal.isdigit()):
        return None
    try:
        return int(ordinal), int(number, 16)
    except ValueError:
        return None


def new_segment_id() -> int:
    """Return a random number, so that no record of a file's former life can be taken for a new one."""
    return secrets.randbits(64)


def create(path: Path, ordinal: int, segment_id: int, size: int) -> SegmentFile:
    """Make a fresh segment with all its blocks allocated.

    Raises:
        LogUnavailable: the disk is full, or fails; nothing is left behind.
    """
    try:
        hit("log.prepare")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(fd, 0, size)
            os.fdatasync(fd)
        finally:
            os.close(fd)
        sync_folder(path.parent)
        return SegmentFile(path, ordinal, segment_id, size)
    except FileExistsError as error:
        raise LogUnavailable(f"{path}: no segment can be made: the file exists already") from error
    except OSError as error:
        path.unlink(missing_ok=True)
        why = str(error)
        if error.errno == errno.EINVAL:
            why = "this file system cannot allocate space ahead; put the run on a local disk"
        raise LogUnavailable(f"{path}: no segment of {size} bytes can be made: {why}") from error


def recycle(spare: Path, path: Path, ordinal: int, segment_id: int, size: int) -> SegmentFile | None:
    """Make a retired file an empty segment; None while somebody reads or deletes it (they hold a lock on it).

    Raises:
        LogUnavailable: the disk is full, or fails.
    """
    try:
        try:
            fd = os.open(spare, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # the monitor was faster
            return None
        try:
            if not _lock(fd, spare):
                return None
            hit("log.recycle")
            os.posix_fallocate(fd, 0, size)  # does nothing, unless somebody truncated the file or punched holes into it
            os.rename(spare, path)
            sync_folder(path.parent)
        finally:
            _unlock(fd)
        return SegmentFile(path, ordinal, segment_id, size)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise LogUnavailable(f"{spare}: cannot be used again: {error}") from error


def delete(path: Path) -> bool:
    """Delete a retired file; False while somebody reads it, or makes it a new segment."""
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
    """Lock a file that nobody else is to use any more; False if somebody does, or if it has gone meanwhile."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(fd).st_ino == os.stat(path).st_ino
    except OSError:
        return False


def _unlock(fd: int) -> None:
    """Unlock and close: closing alone leaves the lock to a child that was forked meanwhile, and nobody could read the file."""
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def was_written(path: Path, segment_id: int) -> bool:
    """Return True if something was written to a segment's file since it was made or last used: even if it is unreadable now.

    The first record of a segment lies at the start of its file. A fresh file has zeros there; one that is used again has the
    first record of its former life.

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
