"""The catalog: which segments, checkpoints and timelines a journal has, how far its watermarks are, who writes it.

A small LMDB environment, shared by trainer, monitor and command line through its transactions. Rows are JSON under keys
like `segment/0000000004`, with a checksum of key and JSON in front. It is written by background threads only; the training
thread never waits for it. Everything in it but requests, incidents and watermarks can be rebuilt from the segments and
checkpoints, which describe themselves (`rebuild.py`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from ..base.config import CATALOG_BYTES, CATALOG_BYTES_GROWN_MAX, FORMAT_VERSION, THREAD_SECONDS_MAX
from ..base.errors import CannotRead, CorruptCatalog, LogUnavailable, UnknownFormat
from ..base.failpoints import hit
from ..base.threads import WaitableLock
from .lmdb_environment import open_environment, reading, reserve, verify_file
from .rows import CheckpointRow, Incident, RunRow, SegmentRow, TimelineRow, Watermarks
from .tables import Known, Tables

_log = logging.getLogger("tranlogs")

CATALOG_NAME = "catalog.lmdb"

_READER_CHECK = 256  # every so many transactions

_open_here: dict[str, Catalog] = {}  # LMDB allows one environment a file and process
_open_lock = threading.Lock()


class Catalog:
    """The catalog of one journal."""

    def __init__(self, path: Path, env: lmdb.Environment, *, writable: bool) -> None:
        self.path, self.writable = path, writable
        self._inode = os.stat(path).st_ino
        self._env: lmdb.Environment | None = env  # None where it could not be opened again
        self._map_bytes = CATALOG_BYTES
        self._is_doubtful = False  # LMDB refuses everything once it could not write its meta page, until it is opened anew
        self._lock = threading.Lock()  # of the writer
        self._idle = WaitableLock()
        self._active: Counter[int] = Counter()  # transactions under way, by thread
        self._known: Known = {}
        self._is_closed = False
        self._written = 0  # transactions
        self._users = 1

    @classmethod
    def open(cls, folder: Path, *, writable: bool = False) -> Catalog:
        """Open a journal's catalog; a writable one is made if there is none.

        Raises:
            CorruptCatalog: it is missing (for a reader) or damaged.
            LogUnavailable: it cannot be written (full disk, missing rights).
            UnknownFormat: a newer version wrote it.
        """
        path = folder / CATALOG_NAME
        with _open_lock:
            found = _open_here.get(os.path.realpath(path))
            if found is not None and found._is_at(path):
                if writable and not found.writable:  # a reader of this process was first: LMDB allows one environment
                    with found._idle:
                        found._wait_for_others()
                        found._reopen(writable=True)
                found._users += 1
                return found
            if not path.exists() and not writable:
                raise CorruptCatalog(path, "the catalog is missing")
            if path.exists():
                verify_file(path)
            catalog = cls(path, open_environment(path, writable, CATALOG_BYTES), writable=writable)
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
        """Whether this is the file that lies there: another process may have put another in its place."""
        try:
            return os.stat(path).st_ino == self._inode
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Close it once all its users here have."""
        with _open_lock:
            self._users -= 1
            if self._users == 0 and self._close_environment() and _open_here.get(os.path.realpath(self.path)) is self:
                del _open_here[os.path.realpath(self.path)]

    @contextmanager
    def transaction(self) -> Iterator[Tables]:
        """A write transaction: all of it becomes durable at the end of the block, or nothing.

        Raises:
            LogUnavailable: the disk is full or fails.
        """
        with self._lock:
            self._written += 1
            try:
                with self._begin(write=True) as txn:
                    yield Tables(txn, self.path, self._known, txn.id() - 1)
                    hit("catalog.before_commit")
                hit("catalog.after_commit")
            except (lmdb.Error, OSError) as error:
                self._is_doubtful = True
                raise LogUnavailable(f"{self.path}: {error}") from error

    def read(self, look: Callable[[Tables], Any]) -> Any:
        """Run `look` on one consistent snapshot.

        Raises:
            CorruptCatalog: a row is damaged, or the disk fails.
        """
        try:
            with self._begin() as txn:
                return look(Tables(txn, self.path, self._known, txn.id()))
        except (lmdb.Error, LogUnavailable, ValueError, KeyError, TypeError) as error:
            raise CorruptCatalog(self.path, f"it cannot be read ({error})") from error

    @contextmanager
    def _begin(self, *, write: bool = False) -> Iterator[lmdb.Transaction]:
        """A transaction, in an environment that is opened anew before it where it has to be."""
        try:
            txn = self._begun(write)
        except (lmdb.PanicError, lmdb.MapResizedError):  # a write failed; another process made the map larger
            self._is_doubtful = True
            txn = self._begun(write)
        try:
            with txn:
                yield txn
        finally:
            self._leave()

    def _begun(self, write: bool) -> lmdb.Transaction:
        env = self._enter()
        try:
            if write and self._written % _READER_CHECK == 1:  # the first one, too
                env.reader_check()  # processes that were killed while they read pin what they read
                reserve(self.path, env)
            return env.begin(write=write)
        except BaseException:
            self._leave()
            raise

    def _enter(self) -> lmdb.Environment:
        """The environment, which stays open until `_leave`.

        Raises:
            LogUnavailable: it has to be opened anew and cannot be; tried again at the next transaction.
            CorruptCatalog: the same, since it is damaged.
        """
        with self._idle:
            while self._env is None or self._is_doubtful or self._is_nearly_full(self._env):
                if self._is_closed:
                    raise LogUnavailable(f"{self.path}: it is closed")
                self._wait_for_others()
                self._reopen(writable=self.writable)
            self._active[threading.get_ident()] += 1
            return self._env

    def _leave(self) -> None:
        thread = threading.get_ident()
        with self._idle:  # an interrupt that came while this waited is raised at the next call: behind what has to be done
            self._active[thread] -= 1
            if self._active[thread] <= 0:
                del self._active[thread]
            self._idle.notify_all()

    def _wait_for_others(self) -> None:
        """Until no other thread has a transaction. This one has none: Ctrl-C may have come before it could say so.

        Raises:
            LogUnavailable: another thread does not come to an end.
        """
        if not self._idle.wait_for(lambda: self._active.keys() <= {threading.get_ident()}, THREAD_SECONDS_MAX):
            raise LogUnavailable(f"{self.path}: another thread of this process does not end its transaction")
        self._active.clear()

    def _is_nearly_full(self, env: lmdb.Environment) -> bool:
        """Whether the map has to grow. Only a reader that does not go on (a stopped process) can make it so full."""
        if not self.writable or self._map_bytes >= CATALOG_BYTES_GROWN_MAX:
            return False
        used = (int(env.info()["last_pgno"]) + 1) * int(env.stat()["psize"])
        if used < self._map_bytes // 2:
            return False
        _log.warning("%s: a reader holds an old state for very long, and the file grows meanwhile. Processes that read it: %s",
                     self.path, ", ".join(sorted(set(reading(env)))) or "none any more")  # fmt: skip
        while used >= self._map_bytes // 2:
            self._map_bytes *= 2
        return True

    def _reopen(self, *, writable: bool) -> None:
        """Open the file anew; nothing is under way here."""
        if self._env is not None:
            self._env.close()
            self._env = None
        try:
            verify_file(self.path)
        except CannotRead as error:
            raise LogUnavailable(str(error)) from error
        self._env, self.writable = open_environment(self.path, writable, self._map_bytes), writable
        self._inode = os.stat(self.path).st_ino
        self._known.clear()  # numbers of transactions are those of one file
        self._is_doubtful = False

    def _close_environment(self) -> bool:
        """False where another thread is in a transaction: closing under it would be a crash, so the next to open has it."""
        with self._idle:
            try:
                self._wait_for_others()
            except LogUnavailable:
                return False
            self._is_closed = True
            if self._env is not None:
                self._env.close()
                self._env = None
            return True

    # What everybody asks for.

    def segments(self) -> list[SegmentRow]:
        """All segments, oldest first."""
        return list(self.read(lambda tables: tables.rows("segment/", SegmentRow)))

    def checkpoints(self) -> list[CheckpointRow]:
        """All published checkpoints, oldest first."""
        rows = self.read(lambda tables: tables.rows("checkpoint/", CheckpointRow))
        rows = [row for row in rows if row.state == "published"]
        return sorted(rows, key=lambda row: (row.timeline, row.sequence))

    def timelines(self) -> list[TimelineRow]:
        """All timelines, by number."""
        return list(self.read(lambda tables: tables.rows("timeline/", TimelineRow)))

    def incidents(self) -> list[Incident]:
        """When logging was suspended, oldest first."""
        return list(self.read(lambda tables: tables.rows("incident/", Incident)))

    def watermarks(self) -> Watermarks:
        """The watermarks as last written."""
        return self.read(lambda tables: tables.get("watermarks", Watermarks)) or Watermarks()

    def run(self) -> RunRow | None:
        """The run's row."""
        found: RunRow | None = self.read(lambda tables: tables.get("run", RunRow))
        return found
