"""The catalog of a journal: its segments, checkpoints, timelines and watermarks, and the run that it belongs to.

The catalog is a small LMDB environment. Only the process that owns the journal writes it, and all processes read it. Others
ask the owner for changes (`requests.py`). A row is JSON under a key like `segment/0000000004`, preceded by a checksum of key
and JSON. All rows but requests, incidents and watermarks can be rebuilt from the segments and checkpoints, which describe
themselves (`rebuild_catalog.py`).

A process that is foreign to this protocol, such as a tool of LMDB, can hold LMDB's write lock. Then the threads in the
background wait, `synced` lags, and a warning names the process. The training thread waits for a bounded time only.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from ..base.atomic_files import publishing
from ..base.config import CATALOG_BYTES, CATALOG_BYTES_GROWN_MAX, CATALOG_HELD_SECONDS, FORMAT_VERSION, THREAD_SECONDS_MAX
from ..base.errors import CannotRead, CatalogUnavailable, CorruptCatalog, LogUnavailable, RunLost, UnknownFormat
from ..base.failpoints import hit
from ..base.threads import WaitableLock
from .lmdb_environment import (
    DAMAGE,
    StaleLockFile,
    advise,
    begin_writing,
    close_environment,
    find_writer,
    has_lost_lock_file,
    list_readers,
    open_verified,
    reserve_space,
)
from .rows import CheckpointRow, Incident, RunRow, SegmentRow, TimelineRow, Watermarks
from .tables import Change, RowCache, Tables

_log = logging.getLogger("tranlogs")

CATALOG_NAME = "catalog.lmdb"

_READER_CHECK = 256  # write transactions between two searches for readers that were killed
_POLL_SECONDS = 0.005  # between two looks at whether another process holds LMDB's write lock
_HELD_SECONDS = 0.05  # the wait for a process that has held the lock for CATALOG_HELD_SECONDS

_open_here: dict[str, Catalog] = {}  # LMDB allows one environment for each file and process
_open_lock = threading.Lock()


class _Held(CatalogUnavailable):
    """Another process holds LMDB's write lock."""

    def __init__(self, path: Path, pid: int) -> None:
        who = f"process {pid}" if pid else "another process"
        remedy = f"let it go on (kill -CONT {pid}) or end it" if pid else "look for a stopped tool of LMDB and end it"
        super().__init__(
            path, f"{who} holds a write transaction of the catalog and does not end it. If it is stopped, {remedy}"
        )


class Catalog:
    """The catalog of one journal.

    Attributes:
        demand_writer: called inside each write transaction, set by the journal's writer; raises if another process has become
            the writer, so that nothing of this one is committed beside it.
        is_held: True while another process has held LMDB's write lock for more than CATALOG_HELD_SECONDS.
    """

    def __init__(self, path: Path, env: lmdb.Environment, *, writable: bool) -> None:
        self.path, self.writable = path, writable
        status = os.stat(path)
        self._inode, self._folder_inode = status.st_ino, os.stat(path.parent).st_ino
        self._file_bytes = status.st_size  # at least
        self._damage = ""  # that was done to the file while it was open to be written, and is not repaired yet
        self._env: lmdb.Environment | None = env  # None if the last attempt to open it again failed
        self.is_held = False
        self._map_bytes = CATALOG_BYTES
        self._reserved = 0  # bytes of the file that are known to be allocated
        # After a failed write of its meta page, LMDB refuses all transactions until the file is opened again.
        self._needs_reopening = False
        self._lock = threading.Lock()  # held by the write transaction
        self._idle = WaitableLock()
        self._active: Counter[int] = Counter()  # open transactions, by thread
        self._cache: RowCache = {}
        self._is_closed = False
        self._write_count = 0  # write transactions so far
        self._users = 1
        self.demand_writer: Callable[[], None] = lambda: None

    @classmethod
    def open(cls, folder: Path, *, writable: bool = False) -> Catalog:
        """Open a journal's catalog. With `writable`, create it if it does not exist.

        Raises:
            CorruptCatalog: the catalog is damaged or, without `writable`, missing.
            LogUnavailable: the catalog cannot be written (full disk, missing rights).
            UnknownFormat: a newer version wrote the catalog.
        """
        path = folder / CATALOG_NAME
        with _open_lock:
            found = _open_here.get(os.path.realpath(path))
            if found is not None and found._is_at(path):
                if writable and not found.writable:  # a reader of this process opened it first
                    with found._idle:
                        found._wait_for_others()
                        found._reopen(writable=True)
                found._users += 1
                return found
            if not path.exists() and not writable:
                raise CorruptCatalog(path, "the catalog is missing")
            catalog = cls(path, open_verified(path, writable, CATALOG_BYTES), writable=writable)
            try:
                run = catalog.read(lambda tables: tables.get("run", RunRow))
                if run is not None and run.format != FORMAT_VERSION:
                    raise UnknownFormat(path, run.format, FORMAT_VERSION)
            except BaseException:
                catalog._close_environment()
                raise
            _open_here[os.path.realpath(path)] = catalog
            return catalog

    def _is_at(self, path: Path) -> bool:
        """Return True if the open file is the one at a path. Another process may have replaced it."""
        try:
            return os.stat(path).st_ino == self._inode
        except FileNotFoundError:
            return False

    def __enter__(self) -> Catalog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the catalog. The file stays open until all users in this process have closed it."""
        with _open_lock:
            self._users -= 1
            if self._users == 0 and self._close_environment() and _open_here.get(os.path.realpath(self.path)) is self:
                del _open_here[os.path.realpath(self.path)]

    @contextmanager
    def transaction(self, is_patient: Callable[[], bool] = lambda: False) -> Iterator[Tables]:
        """Begin a write transaction. At the end of the block all of it becomes durable, or nothing if the block raises.

        Args:
            is_patient: a thread in the background passes a function that returns True as long as it can wait for a process
                that holds LMDB's write lock. Otherwise the wait ends after CATALOG_HELD_SECONDS, and while `is_held` at once.

        Raises:
            CatalogUnavailable: another process holds LMDB's write lock.
            LogUnavailable: the disk is full or fails.
        """
        start = time.monotonic()
        while True:
            with self._lock:  # Not held during the wait: so it is held only by a transaction of this process.
                self._write_count += 1
                if self._is_deleted():
                    raise RunLost(f"{self.path} was deleted", "no files of the run are deleted")
                self._needs_reopening |= self.has_lost_lock_file()
                try:
                    with self._begin(write=True) as txn:
                        self._note_held(None)
                        self.demand_writer()
                        yield Tables(txn, self.path, self._cache, txn.id() - 1)
                        hit("catalog.before_commit")
                    hit("catalog.after_commit")
                    return
                except _Held as error:
                    held = error
                except (lmdb.Error, OSError) as error:
                    self._needs_reopening = True
                    raise LogUnavailable(f"{self.path}: {error}") from error
            waited = time.monotonic() - start
            if waited >= CATALOG_HELD_SECONDS:
                self._note_held(held)
            if waited >= (_HELD_SECONDS if self.is_held else CATALOG_HELD_SECONDS) and not is_patient():
                raise held
            time.sleep(_POLL_SECONDS)

    def _is_deleted(self) -> bool:
        """Return True if the file was deleted from its folder. (If the folder was moved or deleted, that is another matter.)"""
        if self._env is None or self.path.exists():
            return False
        try:
            return os.stat(self.path.parent).st_ino == self._folder_inode
        except FileNotFoundError:
            return False

    def write_deleted_file(self) -> None:
        """Write the file again if it was deleted, from what this process has open.

        Raises:
            LogUnavailable: the file cannot be written.
        """
        with self._lock:
            if not self._is_deleted():
                return
            try:
                assert self._env is not None
                with publishing(self.path) as copy, copy.open("r+b") as file:
                    self._env.copyfd(file.fileno())
            except (lmdb.Error, OSError) as error:
                raise LogUnavailable(f"{self.path} was deleted and cannot be written again: {error}") from error
            self._needs_reopening = True
        _log.warning("%s was deleted, and was written again", self.path)

    def demand_sound(self) -> None:
        """Open the file again, and read all of its structure and rows.

        Raises:
            CorruptCatalog: the file is damaged.
            LogUnavailable: the file cannot be opened.
        """
        with self._lock:
            self._needs_reopening, self._damage = True, ""
            self.read(Tables.check)
        if self.run() is None:  # an empty file is opened as a new one
            raise CorruptCatalog(self.path, "the run's row is missing")

    def _note_held(self, error: _Held | None) -> None:
        was_held, self.is_held = self.is_held, error is not None
        if error is not None and not was_held:
            _log.warning("%s. Meanwhile `synced` and what `status` shows lag behind", error)
        elif error is None and was_held:
            _log.warning("%s: the catalog can be written again", self.path)

    def make(self, change: Change, is_patient: Callable[[], bool] = lambda: False) -> bool:
        """Make a change; return False if one of its conditions does not hold.

        Raises:
            LogUnavailable: as `transaction` does.
        """
        with self.transaction(is_patient) as tables:
            return change.apply(tables)

    def has_lost_lock_file(self) -> bool:
        """Return True if LMDB's lock file was deleted, so that the catalog must be opened again."""
        return self._env is not None and has_lost_lock_file(self._env, self.path)

    def read(self, query: Callable[[Tables], Any]) -> Any:
        """Return the result of `query` on one consistent snapshot.

        Raises:
            CorruptCatalog: a row or the structure of the file is damaged.
            CatalogUnavailable: LMDB cannot begin a transaction now.
        """
        try:
            with self._begin() as txn:
                return query(Tables(txn, self.path, self._cache, txn.id()))
        except DAMAGE as error:
            raise CorruptCatalog(self.path, f"it cannot be read ({error})") from error
        except lmdb.Error as error:
            raise CatalogUnavailable(self.path, f"it cannot be read now, and is not damaged: {advise(error)}") from error

    @contextmanager
    def _begin(self, *, write: bool = False) -> Iterator[lmdb.Transaction]:
        """Begin a transaction. The environment is opened again first if that is needed."""
        try:
            txn = self._begin_transaction(write)
        except (lmdb.PanicError, lmdb.MapResizedError, StaleLockFile):  # a write failed, or another process enlarged the map
            self._needs_reopening = True
            txn = self._begin_transaction(write)
        try:
            with txn:
                yield txn
        finally:
            self._leave()

    def _begin_transaction(self, write: bool) -> lmdb.Transaction:
        env = self._enter()
        try:
            if write:
                if self._write_count % _READER_CHECK == 1:  # including the first one
                    env.reader_check()  # a reader that was killed would pin its snapshot for ever
                self._reserved = reserve_space(self.path, env, self._reserved)
            if not write:
                return env.begin()
            assert self.writable, "the catalog was opened for reading"
            holder = find_writer(env)
            if holder is not None:
                raise _Held(self.path, holder)
            return begin_writing(env, self.path)
        except BaseException:
            self._leave()
            raise

    def _find_cut(self) -> int | None:
        """Return the length of the file if a program has cut it off while it is mapped; None if it is whole.

        A look at what is missing would end the process.
        """
        if self._env is None or self._needs_reopening:
            return None
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None
        if found.st_ino != self._inode:  # Another file is there now; the one that is mapped still has its length.
            return None
        if found.st_size < self._file_bytes:
            return found.st_size
        self._file_bytes = found.st_size
        return None

    def _enter(self) -> lmdb.Environment:
        """Return the environment and keep it open until `_leave`.

        Raises:
            LogUnavailable: the environment must be opened again and cannot be. The next transaction tries again.
            CorruptCatalog: the environment must be opened again and is damaged.
        """
        with self._idle:
            if (cut_at := self._find_cut()) is not None:
                self._needs_reopening = True
                self._damage = f"it was cut off at byte {cut_at} while it was open" if self.writable else ""
            while self._env is None or self._needs_reopening or self._is_nearly_full(self._env):
                if self._is_closed:
                    raise LogUnavailable(f"{self.path}: the catalog is closed")
                self._wait_for_others()
                self._reopen(writable=self.writable)
            if self._damage:  # An empty file was opened as a new one, in which nothing must be written.
                raise CorruptCatalog(self.path, self._damage)
            self._active[threading.get_ident()] += 1
            return self._env

    def _leave(self) -> None:
        thread = threading.get_ident()
        with self._idle:  # an interrupt during the wait is raised at the next call, after the thread is taken off the list
            self._active[thread] -= 1
            if self._active[thread] <= 0:
                del self._active[thread]
            self._idle.notify_all()

    def _wait_for_others(self) -> None:
        """Wait until no other thread has a transaction.

        This thread has none, even if it is listed: Ctrl-C may have come before `_leave` could take it off the list.

        Raises:
            LogUnavailable: another thread does not end its transaction in time.
        """
        if not self._idle.wait_for(lambda: self._active.keys() <= {threading.get_ident()}, THREAD_SECONDS_MAX):
            raise LogUnavailable(f"{self.path}: another thread of this process does not end its transaction")
        self._active.clear()

    def _is_nearly_full(self, env: lmdb.Environment) -> bool:
        """Return True if the map must grow: for a million records, or because a stopped reader keeps pages from reuse."""
        if not self.writable or self._map_bytes >= CATALOG_BYTES_GROWN_MAX:
            return False
        used = (int(env.info()["last_pgno"]) + 1) * int(env.stat()["psize"])
        if used < self._map_bytes // 2:
            return False
        readers = sorted(set(list_readers(env)))
        if readers:
            _log.warning(
                "%s: it has %d MiB. It grows while a reader holds an old snapshot open. Processes that read it: %s",
                self.path,
                used >> 20,
                ", ".join(readers),
            )
        while used >= self._map_bytes // 2:
            self._map_bytes *= 2
        return True

    def _reopen(self, *, writable: bool) -> None:
        """Open the file again. No thread may have a transaction."""
        self._close_files()
        try:
            self._env, self.writable = open_verified(self.path, writable, self._map_bytes), writable
        except CannotRead as error:
            raise LogUnavailable(str(error)) from error
        status = os.stat(self.path)
        self._inode, self._file_bytes = status.st_ino, status.st_size
        _open_here.setdefault(os.path.realpath(self.path), self)  # It was taken off if another catalog was written meanwhile.
        self._reserved = 0
        self._cache.clear()  # transaction numbers are valid for one file only
        self._needs_reopening = False

    def _close_environment(self) -> bool:
        """Close the environment. Return False if another thread has a transaction: LMDB would crash if it were closed then."""
        with self._idle:
            try:
                self._wait_for_others()
            except LogUnavailable:
                return False
            self._is_closed = True
            self._close_files()
            return True

    def _close_files(self) -> None:
        if self._env is not None:
            close_environment(self._env)
            self._env = None

    # Common queries.

    def segments(self) -> list[SegmentRow]:
        """Return all segments, oldest first."""
        return list(self.read(lambda tables: tables.rows("segment/", SegmentRow)))

    def checkpoints(self) -> list[CheckpointRow]:
        """Return all published checkpoints, oldest first."""
        return list(self.read(Tables.published_checkpoints))

    def timelines(self) -> list[TimelineRow]:
        """Return all timelines, by number."""
        return list(self.read(lambda tables: tables.rows("timeline/", TimelineRow)))

    def incidents(self) -> list[Incident]:
        """Return the times in which logging was suspended, oldest first."""
        return list(self.read(lambda tables: tables.rows("incident/", Incident)))

    def watermarks(self) -> Watermarks:
        """Return the watermarks as they were last written."""
        return self.read(lambda tables: tables.get("watermarks", Watermarks)) or Watermarks()

    def run(self) -> RunRow | None:
        """Return the run's row; None if it was not written yet."""
        found: RunRow | None = self.read(lambda tables: tables.get("run", RunRow))
        return found


class ReopeningCatalog:
    """The catalog of a journal, in whichever file it is now. Only one thread may use it.

    Attributes:
        open_count: the number of files that were opened so far. It changes when the catalog was replaced.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._catalog: Catalog | None = None
        self._inode = 0
        self.open_count = 0

    def current(self) -> Catalog:
        """Return the catalog, opened again if its file was replaced.

        Raises:
            CorruptCatalog, LogUnavailable: the catalog cannot be opened now.
            OSError: the journal has no catalog.
        """
        inode = os.stat(self._folder / CATALOG_NAME).st_ino
        if self._catalog is not None and (inode != self._inode or self._catalog.has_lost_lock_file()):
            self.close()
        if self._catalog is None:
            self._catalog, self._inode = Catalog.open(self._folder), inode
            self.open_count += 1
        return self._catalog

    def close(self) -> None:
        """Close the catalog. `current` opens it again."""
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None
