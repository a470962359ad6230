"""The catalog: which segments, checkpoints and timelines a journal has, how far its watermarks are, who writes it.

A small LMDB environment, shared by trainer, monitor and command line through its transactions. Rows are JSON under keys
like `segment/0000000004`, with a checksum of key and JSON in front. It is written by background threads only; the training
thread never waits for it. Everything in it but requests, incidents and watermarks can be rebuilt from the segments and
checkpoints, which describe themselves (`rebuild.py`).
"""

from __future__ import annotations

import json
import logging
import os
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import lmdb
import lmdb.verify
import xxhash

from .config import CATALOG_BYTES, CATALOG_BYTES_GROWN_MAX, FORMAT_VERSION, THREAD_SECONDS_MAX
from .durable import allocate_lock_file
from .errors import CannotRead, CorruptCatalog, LogUnavailable, UnknownFormat
from .failpoints import hit

_log = logging.getLogger("tranlogs")

CATALOG_NAME = "catalog.lmdb"

SegmentState = Literal["ready", "open", "sealed", "retired"]


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A segment. `ready` = prepared, maybe written to since; `retired` = its file may be reused or deleted."""

    ordinal: int
    segment_id: str  # 16 hex digits
    file: str
    size: int
    state: SegmentState
    timeline: int = 0
    base_sequence: int = 0  # the entry before its first
    base_step: int = 0
    last_sequence: int = 0  # set when sealed, as are the next three
    last_step: int = 0
    used_bytes: int = 0
    sealed_at: float = 0.0
    created_at: float = 0.0

    @property
    def number(self) -> int:
        """The segment id as a number."""
        return int(self.segment_id, 16)


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A published checkpoint; `chain` is the digest that the entry after it names."""

    name: str
    step: int
    sequence: int
    chain: str
    timeline: int
    nbytes: int
    created_at: float
    seconds: float = 0.0  # what writing it took
    state: Literal["published", "retired"] = "published"


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """A timeline and where it left its parent; timeline 1 has none."""

    number: int
    parent: int = 0
    fork_sequence: int = 0
    fork_step: int = 0
    created_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Step numbers, each at most the one before; `committed` here trails the log (read it there)."""

    committed: int = 0
    synced: int = 0
    archived: int = 0
    persisted: int = 0
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Incident:
    """Logging was suspended for a time: why, from which step to which."""

    number: int
    why: str
    from_step: int
    from_time: float
    to_step: int | None = None
    to_time: float | None = None


@dataclass(frozen=True, slots=True)
class RunRow:
    """What the journal is part of."""

    run_id: str
    rank: int
    created_at: float
    format: int = FORMAT_VERSION
    framework: str = ""
    settings: dict[str, Any] = field(default_factory=dict)


Row = TypeVar("Row", SegmentRow, CheckpointRow, TimelineRow, Watermarks, Incident, RunRow)

_KINDS: dict[str, type[Any]] = {
    "segment/": SegmentRow, "checkpoint/": CheckpointRow, "timeline/": TimelineRow, "incident/": Incident,
    "watermarks": Watermarks, "run": RunRow,
}  # fmt: skip


class Tables:
    """The rows inside one transaction."""

    def __init__(self, txn: lmdb.Transaction, path: Path) -> None:
        self._txn, self._path = txn, path

    def get(self, key: str, kind: type[Row]) -> Row | None:
        """One row, None where there is none."""
        raw = self._txn.get(key.encode())
        return None if raw is None else self._decode(bytes(raw), kind, key)

    def rows(self, prefix: str, kind: type[Row]) -> list[Row]:
        """All rows under a prefix, in the order of their keys."""
        return [self._decode(raw, kind, key) for key, raw in self._under(prefix)]

    def keys(self, prefix: str) -> list[str]:
        """The keys under a prefix, in order."""
        return [key for key, _ in self._under(prefix)]

    def check(self) -> None:
        """Read every row.

        Raises:
            CorruptCatalog: one is damaged.
        """
        for key, raw in self._under(""):
            _checked(raw, self._path, key)
        for prefix, kind in _KINDS.items():
            self.rows(prefix, kind)

    def put(self, key: str, row: Any) -> None:
        """Add or replace a row (a dataclass)."""
        self._put(key, asdict(row))

    def delete(self, key: str) -> None:
        """Remove a row."""
        self._txn.delete(key.encode())

    def request(self, name: str) -> dict[str, Any] | None:
        """A request from the monitor to the trainer."""
        raw = self._txn.get(f"request/{name}".encode())
        return None if raw is None else json.loads(_checked(bytes(raw), self._path, f"request/{name}"))

    def put_request(self, name: str, content: dict[str, Any]) -> None:
        """Ask the trainer for something."""
        self._put(f"request/{name}", content)

    def _put(self, key: str, content: dict[str, Any]) -> None:
        body = json.dumps(content, separators=(",", ":")).encode()
        self._txn.put(key.encode(), xxhash.xxh3_64_digest(key.encode() + body) + body)

    def _under(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        cursor = self._txn.cursor()
        start = prefix.encode()
        if cursor.set_range(start):
            for key, raw in cursor:
                name = bytes(key)
                if not name.startswith(start):
                    break
                yield name.decode(), bytes(raw)

    def _decode(self, raw: bytes, kind: type[Row], key: str) -> Row:
        content = json.loads(_checked(bytes(raw), self._path, key))
        known = {f.name for f in fields(kind)}
        return kind(**{name: value for name, value in content.items() if name in known})


def _checked(raw: bytes, path: Path, key: str) -> bytes:
    if xxhash.xxh3_64_digest(key.encode() + raw[8:]) != raw[:8]:
        raise CorruptCatalog(path, f"row {key}: its checksum differs")
    return raw[8:]


_READER_CHECK = 256  # every so many transactions

_open_here: dict[str, Catalog] = {}  # LMDB allows one environment a file and process
_open_lock = threading.Lock()


class Catalog:
    """The catalog of one journal."""

    def __init__(self, path: Path, env: lmdb.Environment, *, writable: bool) -> None:
        self.path, self.writable = path, writable
        self._env: lmdb.Environment | None = env  # None where it could not be opened again
        self._map_bytes = CATALOG_BYTES
        self._is_doubtful = False  # LMDB refuses everything once it could not write its meta page, until it is opened anew
        self._lock = threading.Lock()  # of the writer
        self._idle = threading.Condition()
        self._active: Counter[int] = Counter()  # transactions under way, by thread
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
            if found is not None and path.exists():
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
            catalog = cls(path, _environment(path, writable, CATALOG_BYTES), writable=writable)
            try:
                run = catalog.read(lambda tables: tables.get("run", RunRow))
                if run is not None and run.format != FORMAT_VERSION:
                    raise UnknownFormat(path, run.format, FORMAT_VERSION)
            except BaseException:
                catalog._close_environment()
                raise
            _open_here[os.path.realpath(path)] = catalog
            return catalog

    def close(self) -> None:
        """Close it once all its users here have."""
        with _open_lock:
            self._users -= 1
            if self._users == 0 and self._close_environment():
                _open_here.pop(os.path.realpath(self.path), None)

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
                    yield Tables(txn, self.path)
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
                return look(Tables(txn, self.path))
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
            if write and self._written % _READER_CHECK == 0:
                env.reader_check()  # processes that were killed while they read pin what they read
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
        with self._idle:
            thread = threading.get_ident()
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
                     self.path, ", ".join(sorted(set(_reading(env)))) or "none any more")  # fmt: skip
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
        self._env, self.writable = _environment(self.path, writable, self._map_bytes), writable
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

    def update_watermarks(self, **changes: Any) -> None:
        """Write some watermarks."""
        with self.transaction() as tables:
            now = tables.get("watermarks", Watermarks) or Watermarks()
            tables.put("watermarks", replace(now, **changes))


def segment_key(ordinal: int) -> str:
    return f"segment/{ordinal:010d}"


def timeline_key(number: int) -> str:
    return f"timeline/{number:06d}"


def verify_file(path: Path) -> None:
    """Check the structure of an LMDB file without mapping it: LMDB would abort the process over a damaged one.

    Raises:
        CannotRead: file handles, memory or rights are missing.
        CorruptCatalog: it is damaged. A live catalog can look so for a moment, so it is looked at several times.
    """
    problem = ""
    for _ in range(5):
        try:
            problems = lmdb.verify.verify(str(path)) or _odd_metas(path)  # type: ignore[no-untyped-call]
            if not problems:
                return
            problem = str(problems[0])
        except MemoryError:
            raise
        except Exception as error:  # VerifyError, and whatever else the content makes of a walk over it
            if isinstance(error, OSError):
                CannotRead.demand(path, error)
            problem = str(error)
        if path.exists() and path.stat().st_size == 0:
            break
    raise CorruptCatalog(path, f"it is damaged ({problem})")


_META = struct.Struct("<40xIH46xH50xQ")  # LMDB's meta page: page size, flags of free list and tree, transaction number
_FLAGS_MASK = 0x7F  # what changes how keys and values are read, or where the file is mapped


def _odd_metas(path: Path) -> list[str]:
    """What the structure allows and LMDB aborts over, or silently takes an older state for: a catalog never has it."""
    with path.open("rb") as file:
        head = file.read(_META.size)
        file.seek(_META.unpack(head)[0])
        metas = [_META.unpack(meta) for meta in (head, file.read(_META.size))]
    found = []
    for _, free, main, _ in metas:
        if (free & _FLAGS_MASK, main & _FLAGS_MASK) != (0x08, 0):
            found.append(f"the flags of its trees are {free:#x} and {main:#x}")
    numbers = [number for *_, number in metas]
    if abs(numbers[0] - numbers[1]) > 1:  # they are written in turn
        found.append(f"its last transactions are {numbers}")
    return found


def _reading(env: lmdb.Environment) -> Iterator[str]:
    """The processes that are reading now."""
    for line in str(env.readers()).splitlines()[1:]:
        pid, _, transaction = line.split()[:3]
        if transaction != "-":
            yield pid


_DAMAGE = (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError, lmdb.PageNotFoundError)


def _environment(path: Path, writable: bool, map_bytes: int) -> lmdb.Environment:
    options: dict[str, Any] = {"subdir": False, "map_size": map_bytes, "max_dbs": 0, "lib_version": 0}
    try:
        if writable:
            allocate_lock_file(path)
            env = lmdb.open(str(path), sync=True, lock=True, **options)
            env.reader_check()  # processes that were killed while they read
            return env
        try:
            return lmdb.open(str(path), readonly=True, lock=True, **options)
        except (lmdb.Error, OSError):  # no permission to write the lock file: nobody can be writing beside us, then
            return lmdb.open(str(path), readonly=True, lock=False, **options)
    except _DAMAGE as error:
        raise CorruptCatalog(path, f"it cannot be opened ({error})") from error
    except (lmdb.Error, OSError) as error:
        if writable:  # a full disk, a missing right: nothing that a rebuilt catalog would cure
            raise LogUnavailable(f"{path}: it cannot be opened ({error})") from error
        raise CorruptCatalog(path, f"it cannot be opened ({error})") from error
