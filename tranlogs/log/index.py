"""The index of the log: an LMDB environment with the head, description and offset of every record, by segment and step.

The tensors' bytes are in the segments. The sync thread adds records in groups, after it has flushed the segment. LMDB syncs
the transaction itself, and its commit makes the group `synced`. A record in the index is therefore in its segment, too.
Records that are not in the index yet are found by a scan of the open segment's tail. If the environment is lost or damaged,
it is rebuilt from the segments, so it never holds the only copy of a record.

    key    segment id, step, sequence number: u64 each, big-endian
    value  offset in the file (u64, little-endian), 64 head bytes, description (omitted if it has 64 KiB or more)

The records of one segment are in the order of their sequence numbers. One look-up finds the first record of a step. The key
"run" holds the format version and the id of the run.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import lmdb

from ..base.config import CATALOG_BYTES_RESERVED, FORMAT_VERSION, INDEX_BYTES, INDEX_BYTES_GROWN_MAX
from ..base.errors import CatalogUnavailable, CorruptCatalog, LogUnavailable
from ..base.failpoints import hit
from ..base.threads import WaitableLock
from ..catalog.lmdb_environment import (
    DAMAGE,
    advise,
    close_environment,
    has_lost_lock_file,
    open_environment,
    reserve_space,
    verify_file,
)
from .record_format import HEAD, Location, unpack_head

INDEX_NAME = "records.lmdb"
_DESCRIPTION_BYTES_MAX = 1 << 16  # Longer descriptions are read from the segment.
_DELETED_MAX = 500  # records that are deleted in one transaction
_KEY = struct.Struct(">QQQ")
_OFFSET = struct.Struct("<Q")
_RUN = b"run"
_T = TypeVar("_T")


class IndexedRecord(NamedTuple):
    """A record to be added to the index."""

    segment_id: int
    sequence: int
    step: int
    offset: int
    head: bytes
    description: bytes


_open_here: dict[str, LogIndex] = {}  # LMDB allows a process to open each file once.
_open_lock = WaitableLock()


class LogIndex:
    """The index of one journal's log. All users in a process share one instance; each `open` needs one `close`."""

    def __init__(self, path: Path, env: lmdb.Environment, *, writable: bool) -> None:
        self.path, self.writable, self._env = path, writable, env
        self._inode = os.stat(path).st_ino
        self._map_bytes = INDEX_BYTES
        self._page_bytes, self._allocated = int(env.stat()["psize"]), 0
        self._users = 1
        self._reading = WaitableLock()  # held while the map must not be resized

    @classmethod
    def open(cls, folder: Path, run_id: str | None, *, writable: bool = False) -> LogIndex:
        """Open the index in a journal's log folder. With `writable`, create it if it does not exist.

        Raises:
            CorruptCatalog: the index is damaged, belongs to another run, or (for a reader) is missing.
            LogUnavailable: the index cannot be written (full disk, missing permissions).
        """
        path = folder / INDEX_NAME
        real = os.path.realpath(path)
        with _open_lock:
            found = _open_here.get(real)
            if found is not None and found._is_at(path):
                if writable and not found.writable:  # A reader in this process has opened it before.
                    found._make_writable()
                found._users += 1
                return found
            if not path.exists() and not writable:
                raise CorruptCatalog(path, "the index of the log is missing")
            if path.exists():
                verify_file(path)
            index = cls(path, open_environment(path, writable, INDEX_BYTES), writable=writable)
            try:
                index._claim(run_id)
            except BaseException:
                close_environment(index._env)
                raise
            _open_here[real] = index
            return index

    def _make_writable(self) -> None:
        """Reopen the environment for writing. Its readers in this process continue with the new environment."""
        with self._reading:
            close_environment(self._env)
            self._env = open_environment(self.path, True, INDEX_BYTES)
            self.writable = True

    def _is_at(self, path: Path) -> bool:
        try:
            return os.stat(path).st_ino == self._inode
        except FileNotFoundError:
            return False

    def _claim(self, run_id: str | None) -> None:
        if run_id is None:
            return
        wanted = f"{FORMAT_VERSION} {run_id}".encode()
        try:
            with self._env.begin() as txn:
                found = txn.get(_RUN)
                is_empty = txn.stat()["entries"] == 0
            if found is None and is_empty and self.writable:
                hit("log.index")
                self._change(lambda txn: txn.put(_RUN, wanted))
                found = wanted
        except DAMAGE as error:
            raise CorruptCatalog(self.path, f"it cannot be read ({error})") from error
        except lmdb.Error as error:
            raise CatalogUnavailable(self.path, f"it cannot be read now, and is not damaged: {advise(error)}") from error
        if found != wanted:
            raise CorruptCatalog(self.path, "it belongs to another run, or to another version of TranLogs")

    def close(self) -> None:
        """Close the index. The environment is closed when its last user in this process has closed the index."""
        with _open_lock:
            self._users -= 1
            if self._users == 0:
                close_environment(self._env)
                real = os.path.realpath(self.path)
                if _open_here.get(real) is self:
                    del _open_here[real]

    # Writing: one thread.

    def add(self, records: Iterable[IndexedRecord]) -> None:
        """Add records in one transaction. It is durable when this returns, which is the commit point of `synced`.

        Raises:
            LogUnavailable: the disk is full or fails.
        """
        items = [
            (
                _KEY.pack(segment_id, step, sequence),
                _OFFSET.pack(offset) + head + (description if len(description) < _DESCRIPTION_BYTES_MAX else b""),
            )
            for segment_id, sequence, step, offset, head, description in records
        ]
        hit("log.index")
        self._change(lambda txn: [txn.put(key, value) for key, value in items])

    @contextmanager
    def _begin(self) -> Iterator[lmdb.Transaction]:
        """Begin a write transaction that is durable at the end of the block. Tests cut the power here."""
        with self._env.begin(write=True) as txn:
            yield txn

    def _change(self, change: Callable[[lmdb.Transaction], _T]) -> _T:
        """Run a write transaction, which is durable when this returns. Enlarge the map if it is too small.

        Raises:
            LogUnavailable: the disk is full or fails.
        """
        try:
            if has_lost_lock_file(self._env, self.path):
                self._make_writable()
            while True:
                try:
                    with self._begin() as txn:
                        outcome = change(txn)
                    self._reserve()
                    return outcome
                except lmdb.MapFullError:
                    if self._map_bytes >= INDEX_BYTES_GROWN_MAX:
                        raise
                    self._map_bytes *= 2
                    with self._reading:
                        self._env.set_mapsize(self._map_bytes)
        except (lmdb.Error, OSError) as error:
            raise LogUnavailable(f"{self.path}: {error}") from error

    def _reserve(self) -> None:
        """Preallocate space, so that on a full disk the records in recycled segments can still be indexed."""
        used = (int(self._env.info()["last_pgno"]) + 1) * self._page_bytes
        if used + CATALOG_BYTES_RESERVED // 2 > self._allocated:
            reserve_space(self.path, self._env)
            self._allocated = os.stat(self.path).st_size

    def delete_all_but(self, kept: Iterable[int]) -> bool:
        """Delete up to 500 records of segments that are not in `kept`; return True if none is left to delete.

        Raises:
            LogUnavailable: the disk is full or fails.
        """
        wanted = set(kept)

        def delete(txn: lmdb.Transaction) -> bool:
            cursor, left = txn.cursor(), _DELETED_MAX
            found = cursor.first()
            while found and left:
                key = cursor.key()
                if len(key) != _KEY.size:
                    found = cursor.next()
                    continue
                segment_id = _KEY.unpack(key)[0]
                if segment_id in wanted:
                    found = segment_id < (1 << 64) - 1 and cursor.set_range(_KEY.pack(segment_id + 1, 0, 0))
                    continue
                left -= 1
                cursor.delete()  # moves the cursor to the next record
                found = bool(cursor.key())
            return bool(left)

        return self._change(delete)

    # Reading: any thread.

    def _read(self, query: Callable[[lmdb.Cursor[bytes]], _T]) -> _T:
        """Call a function with a cursor of a read transaction.

        Raises:
            CorruptCatalog: the environment is damaged.
            CatalogUnavailable: LMDB cannot begin a transaction now.
        """
        try:
            with self._reading:
                try:
                    with self._env.begin() as txn, txn.cursor() as cursor:
                        return query(cursor)
                except lmdb.MapResizedError:  # The writer, which is another process, has enlarged the map.
                    self._env.set_mapsize(0)
                    with self._env.begin() as txn, txn.cursor() as cursor:
                        return query(cursor)
        except DAMAGE as error:
            raise CorruptCatalog(self.path, f"it cannot be read ({error})") from error
        except lmdb.Error as error:
            raise CatalogUnavailable(self.path, f"it cannot be read now, and is not damaged: {advise(error)}") from error

    def newest(self, segment_id: int) -> Location | None:
        """Return the newest record of a segment; None if it has none.

        Raises:
            CorruptCatalog: the environment is damaged, or the disk fails.
        """
        key = _KEY.pack(segment_id, (1 << 64) - 1, (1 << 64) - 1)

        def query(cursor: lmdb.Cursor[bytes]) -> Location | None:
            is_there = cursor.prev() if cursor.set_range(key) else cursor.last()
            return self._location(cursor.key(), cursor.value()) if is_there and cursor.key()[:8] == key[:8] else None

        return self._read(query)

    def _location(self, key: bytes, value: bytes) -> Location:
        head = unpack_head(value, _OFFSET.size)
        if head is None or key != _KEY.pack(head.segment_id, head.step, head.sequence):
            raise CorruptCatalog(self.path, "one of its entries is damaged")
        return Location(head, _OFFSET.unpack_from(value)[0], value[_OFFSET.size + HEAD.size :] or None)

    def locations(self, segment_id: int, *, step: int = 0, last_step: int | None = None) -> list[Location]:
        """Return the records of a segment from a step on, in order.

        Args:
            segment_id: id of the segment.
            step: the first step.
            last_step: the last step; None for all later steps.

        Raises:
            CorruptCatalog: the environment is damaged, or the disk fails.
        """
        prefix = segment_id.to_bytes(8, "big")
        last = _KEY.pack(segment_id, (1 << 64) - 1 if last_step is None else last_step, (1 << 64) - 1)

        def query(cursor: lmdb.Cursor[bytes]) -> list[Location]:
            found: list[Location] = []
            if cursor.set_range(_KEY.pack(segment_id, step, 0)):
                for key, value in cursor.iternext():
                    if key[:8] != prefix or key > last or len(key) != _KEY.size:
                        break
                    found.append(self._location(key, value))
            return found

        return self._read(query)


def indexed_locations(folder: Path, segment_id: int) -> list[Location]:
    """Return the records of a segment from the index in a log folder; [] if the index is missing or damaged.

    The run of the index is not checked, because segment ids are random.
    """
    try:
        index = LogIndex.open(folder, None)
    except (CorruptCatalog, LogUnavailable):
        return []
    try:
        return index.locations(segment_id)
    except (CorruptCatalog, CatalogUnavailable):
        return []
    finally:
        index.close()


def delete_index(folder: Path) -> None:
    """Delete a damaged index and its lock file. The segments hold all records of the index."""
    for name in (INDEX_NAME, INDEX_NAME + "-lock"):
        (folder / name).unlink(missing_ok=True)


def open_if_sound(folder: Path, run_id: str, notes: list[str]) -> LogIndex | None:
    """Open the index for reading; return None if it is missing or damaged. Damage is added to `notes`."""
    if not (folder / INDEX_NAME).exists():
        return None
    try:
        return LogIndex.open(folder, run_id)
    except CorruptCatalog as error:
        notes.append(f"{error}; the segments were scanned instead")
    except LogUnavailable:
        pass
    return None
