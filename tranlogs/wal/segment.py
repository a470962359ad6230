"""One segment: an LMDB file of fixed size to which entries are appended. The only module of the log that imports lmdb.

Invariants
* The file's blocks are allocated before use, exactly as many as the map is large: a full disk is an error at
  preparation, never a SIGBUS later. The map never grows and is never opened with a smaller size.
* A reused file gets the meta pages of an empty environment and an fdatasync before its first entry.
* A transaction begins, puts and ends in one thread. `sync` may run in another.
* LMDB's tree is an index. Where a value lies is read from its page header and written into the entry's head, so that
  the scanner (scan.py) finds everything without the tree.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
import struct
import sys
from contextlib import suppress
from pathlib import Path

import lmdb
import numpy as np

from ..codec.entry import PAGE_HEADER_BYTES
from ..durable import allocate_lock_file, sync_folder
from ..errors import LogUnavailable
from ..failpoints import hit
from ..types import Bytes

_KEY = struct.Struct(">QI")
_TRANSACTION = struct.Struct("<144xQ")  # a meta page up to the number of its transaction
_SLACK_PAGES = 64  # LMDB's own: metas, tree pages and their copies in one transaction
_MADV_POPULATE_WRITE = 23  # Linux 5.14
_POPULATE_BYTES = 8 << 20

LMDB_ERRORS = (lmdb.Error, OSError)

_metas: dict[int, bytes] = {}  # of an empty environment, by its size; on a full disk there is no room to make one


def _open(path: Path, size: int) -> lmdb.Environment:
    allocate_lock_file(path)
    # lib_version=0 pins the 0.9 file format, which scan.py reads.
    return lmdb.open(str(path), subdir=False, map_size=size, writemap=True, sync=False, lock=True, max_dbs=0, lib_version=0)


class Transaction:
    """One entry being written: its values are put in order, then committed together or not at all."""

    __slots__ = ("_count", "_sequence", "_txn", "segment")

    def __init__(self, segment: Segment, sequence: int) -> None:
        self.segment, self._sequence, self._count = segment, sequence, 0
        self._txn = segment._env.begin(write=True, buffers=True)

    def put(self, value: Bytes) -> int:
        """Append a value (at least 2,048 bytes) and return the number of its first page."""
        assert value.nbytes >= 2048
        key = _KEY.pack(self._sequence, self._count)
        self._count += 1
        if not self._txn.put(key, value.data, append=True):
            raise LogUnavailable(f"{self.segment.path}: sequence {self._sequence} is not the newest")
        found = self._txn.get(key)
        assert found is not None
        view = np.frombuffer(found, np.uint8)
        # LMDB puts a large value 16 bytes after its page's start, and the page's first field is its number.
        address = view.__array_interface__["data"][0]
        return int(ctypes.c_uint64.from_address(address - PAGE_HEADER_BYTES).value)

    def commit(self) -> None:
        """Make the entry part of the log (commit point for a killed process)."""
        hit("wal.before_commit")
        self._txn.commit()
        hit("wal.after_commit")

    def abort(self) -> None:
        """Forget the entry."""
        self._txn.abort()


class Segment:
    """An open segment file.

    Attributes:
        path: the file.
        ordinal: number of the segment in its journal; later ones are newer.
        segment_id: random 64 bits that every entry repeats.
        size: bytes of the file, all allocated.
    """

    def __init__(self, path: Path, ordinal: int, segment_id: int, size: int) -> None:
        self.path, self.ordinal, self.segment_id, self.size = path, ordinal, segment_id, size
        self._env = _open(path, size)
        self.page_bytes = int(self._env.stat()["psize"])

    def begin(self, sequence: int) -> Transaction:
        """Start an entry; in the thread that also ends it."""
        hit("wal.begin")
        return Transaction(self, sequence)

    def has_room(self, nbytes: int, values: int) -> bool:
        """Whether `values` values of `nbytes` in all fit."""
        pages = nbytes // self.page_bytes + 2 * values + _SLACK_PAGES
        return int(self._env.info()["last_pgno"]) + pages < self.size // self.page_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of the file that hold data: a prefix, itself a complete LMDB file."""
        return (int(self._env.info()["last_pgno"]) + 1) * self.page_bytes

    def sync(self) -> None:
        """Flush everything committed so far to the disk."""
        hit("wal.sync")
        self._env.sync(True)

    def close(self) -> None:
        """Unmap the file. Nothing is flushed."""
        self._env.close()
        with suppress(OSError):  # of a disk that failed; a lock file that is left does no harm
            self.path.with_name(self.path.name + "-lock").unlink(missing_ok=True)


def bytes_needed(nbytes: int, values: int, page_bytes: int = 4096) -> int:
    """Smallest size of a segment in which `has_room(nbytes, values)` holds when it is empty."""
    return (nbytes // page_bytes + 2 * values + _SLACK_PAGES + 8) * page_bytes


def segment_name(ordinal: int, segment_id: int) -> str:
    """File name of a segment; the name repeats what the entries say."""
    return f"{ordinal:010d}-{segment_id:016x}.seg"


def parse_segment_name(name: str) -> tuple[int, int] | None:
    """(ordinal, segment id) of a segment's file name, None for other files."""
    ordinal, dash, rest = name.partition("-")
    number, dot, suffix = rest.partition(".")
    if not (dash and dot and suffix == "seg" and len(number) == 16 and ordinal.isdigit()):
        return None
    try:
        return int(ordinal), int(number, 16)
    except ValueError:
        return None


def new_segment_id() -> int:
    """Random, so that no stale entry of a reused file can be taken for a new one."""
    return secrets.randbits(64)


def create(path: Path, ordinal: int, segment_id: int, size: int) -> Segment:
    """A fresh segment with all its blocks allocated.

    Raises:
        LogUnavailable: the disk is full, or fails; nothing is left behind.
    """
    try:
        hit("wal.prepare")
        if path.exists():
            raise FileExistsError(errno.EEXIST, "it exists already")
        segment = Segment(path, ordinal, segment_id, size)  # LMDB refuses a zeroed file: first its metas, then the blocks
        try:
            _allocate(path, size)
            sync_folder(path.parent)
            _metas[size] = _first_pages(path, segment.page_bytes)
        except OSError:
            segment.close()
            raise
        return segment
    except LMDB_ERRORS as error:
        path.unlink(missing_ok=True)
        path.with_name(path.name + "-lock").unlink(missing_ok=True)
        raise LogUnavailable(f"{path}: no segment of {size} bytes can be made: {error}") from error


def recycle(spare: Path, path: Path, ordinal: int, segment_id: int, size: int) -> Segment | None:
    """Make a retired file an empty segment; None while somebody reads or deletes it (they hold a lock on it).

    Idempotent: a spare can be reset again after a crash in the middle.

    Raises:
        LogUnavailable: the disk is full, or fails.
    """
    try:
        metas = _empty_metas(path, size)
        spare.with_name(spare.name + "-lock").unlink(missing_ok=True)
        try:
            fd = os.open(spare, os.O_RDWR)
        except FileNotFoundError:  # the monitor was faster
            return None
        try:
            if not _is_mine(fd, spare):  # a fresh file does as well
                return None
            hit("wal.reset")
            os.posix_fallocate(fd, 0, size)  # no-op, unless somebody cut or punched the file
            os.pwrite(fd, metas, 0)
            os.fdatasync(fd)  # before any entry: else a stale meta page with a higher transaction number could win
            os.rename(spare, path)
            sync_folder(path.parent)
        finally:
            _let_go(fd)
        return Segment(path, ordinal, segment_id, size)
    except LMDB_ERRORS as error:
        path.unlink(missing_ok=True)
        raise LogUnavailable(f"{spare}: cannot be reused: {error}") from error


def delete(path: Path) -> bool:
    """Delete a retired file; False while somebody reads it, or makes it a new segment."""
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        fd = -1
    try:
        if fd >= 0 and not _is_mine(fd, path):
            return not path.exists()
        hit("wal.unlink")
        path.unlink(missing_ok=True)
        path.with_name(path.name + "-lock").unlink(missing_ok=True)
        return True
    finally:
        if fd >= 0:
            _let_go(fd)


def _is_mine(fd: int, path: Path) -> bool:
    """Lock a file that nobody else is to use any more; False if somebody does, or if it has gone meanwhile."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(fd).st_ino == os.stat(path).st_ino
    except OSError:
        return False


def _let_go(fd: int) -> None:
    """Unlock and close: closing alone leaves the lock to a child that was forked meanwhile, and nobody could read the file."""
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def was_written(path: Path) -> bool:
    """Whether a transaction was ever committed to a segment's file since it was made, or made empty.

    Raises:
        OSError: the file cannot be read.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        for page_bytes in (4096, os.sysconf("SC_PAGE_SIZE")):
            metas = [os.pread(fd, _TRANSACTION.size, at) for at in (0, page_bytes)]
            if any(len(meta) == _TRANSACTION.size and _TRANSACTION.unpack(meta) != (0,) for meta in metas):
                return True
        return False
    finally:
        os.close(fd)


def _allocate(path: Path, size: int) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        os.posix_fallocate(fd, 0, size)
        os.fdatasync(fd)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise OSError(errno.EINVAL, "this file system cannot allocate space ahead; put the run on a local disk") from None
        raise
    finally:
        os.close(fd)


def _empty_metas(path: Path, size: int) -> bytes:
    """The two meta pages that an empty environment of this map size starts with."""
    if size in _metas:
        return _metas[size]
    template = path.with_name(path.name + ".template")
    try:
        env = _open(template, size)
        page = int(env.stat()["psize"])
        env.close()
        _metas[size] = _first_pages(template, page)
        return _metas[size]
    finally:
        template.unlink(missing_ok=True)
        template.with_name(template.name + "-lock").unlink(missing_ok=True)


def _first_pages(path: Path, page_bytes: int) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.pread(fd, 2 * page_bytes, 0)
    finally:
        os.close(fd)


def populate(segment: Segment) -> bool:
    """Map every page of the segment writable now, off the training thread; False where the system cannot.

    A store into a fresh page costs ext4 a journal entry: unpopulated, a step's 43 MB took 120 ms instead of 4. The price
    is that the whole file is dirty, and the next sync writes all of it. In small portions, since the map's lock is held
    meanwhile and the allocators of the training thread want it, too.
    """
    if sys.platform != "linux":
        return False
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    wanted = " " + os.path.realpath(segment.path)
    with open("/proc/self/maps") as maps:
        for line in maps:
            if line.rstrip("\n").endswith(wanted):
                start, end = (int(number, 16) for number in line.split()[0].split("-"))
                parts = range(start, end, _POPULATE_BYTES)
                return all(madvise(at, min(_POPULATE_BYTES, end - at), _MADV_POPULATE_WRITE) == 0 for at in parts)
    return False
