"""Tables of a catalog inside one transaction, and changes of them. A row is JSON, preceded by a checksum of key and JSON."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

import lmdb
import xxhash

from ..base.errors import CorruptCatalog
from .rows import KINDS, CheckpointRow, Row, TimelineRow, Watermarks

_CACHED = ("segment/", "checkpoint/")


@dataclass(frozen=True, slots=True)
class CachedRows:
    """The rows under a prefix, as they were last read.

    Attributes:
        snapshot: the number of the committed transaction whose state they are; None if they are from an open transaction.
        rows: by key, the bytes of a row and the decoded row, which is immutable.
    """

    snapshot: int | None
    rows: dict[bytes, tuple[bytes, Any]]


RowCache = dict[str, CachedRows]  # by prefix


class Tables:
    """The rows inside one transaction.

    Args:
        cache: the rows of segments and checkpoints as they were last read; a run of months has a hundred thousand. If no
            transaction was committed since, none is read again. Otherwise only rows whose bytes differ are decoded again.
        snapshot: the number of the newest transaction that `txn` sees.
    """

    def __init__(self, txn: lmdb.Transaction, path: Path, cache: RowCache | None = None, snapshot: int | None = None) -> None:
        self._txn, self._path, self._cache, self._snapshot = txn, path, cache, snapshot

    def get(self, key: str, kind: type[Row]) -> Row | None:
        """Return a row; None if it does not exist."""
        raw = self._txn.get(key.encode())
        return None if raw is None else self._decode(bytes(raw), kind, key.encode())

    def rows(self, prefix: str, kind: type[Row]) -> list[Row]:
        """Return all rows under a prefix, in the order of their keys."""
        if self._cache is None or prefix not in _CACHED:
            return [self._decode(raw, kind, key) for key, raw in self._iterate(prefix)]
        cached = self._cache.get(prefix) or CachedRows(None, {})
        if self._snapshot is None or cached.snapshot != self._snapshot:
            before, now = cached.rows, {}
            for key, raw in self._iterate(prefix):
                row = before.get(key)
                now[key] = row if row is not None and row[0] == raw else (raw, self._decode(raw, kind, key))
            cached = self._cache[prefix] = CachedRows(self._snapshot, now)
        return [row for _, row in cached.rows.values()]

    def published_checkpoints(self) -> list[CheckpointRow]:
        """Return all published checkpoints, oldest first."""
        rows = [row for row in self.rows("checkpoint/", CheckpointRow) if row.state == "published"]
        return sorted(rows, key=lambda row: (row.timeline, row.sequence))

    def keys(self, prefix: str) -> list[str]:
        """Return the keys under a prefix, in order."""
        cursor, start = self._txn.cursor(), prefix.encode()
        found = cast("Iterator[bytes]", cursor.iternext(values=False)) if cursor.set_range(start) else iter(())
        return [key.decode(errors="replace") for key in takewhile(lambda key: key.startswith(start), found)]

    def check(self) -> None:
        """Check every row."""
        for key, raw in self._iterate(""):
            _verify_checksum(raw, self._path, key)
        for prefix, kind in KINDS.items():
            self.rows(prefix, kind)

    def put(self, key: str, row: Any) -> None:
        """Add or replace a row, which is a dataclass."""
        self.put_content(key, asdict(row))

    def content(self, key: str) -> dict[str, Any] | None:
        """Return the content of a row or a request, as JSON has it; None if it does not exist."""
        raw = self._txn.get(key.encode())
        return None if raw is None else _parse(bytes(raw), self._path, key.encode())

    def delete(self, key: str) -> None:
        """Delete a row if it exists."""
        self._snapshot = None
        self._txn.delete(key.encode())

    def request(self, name: str) -> dict[str, Any] | None:
        """Return a request from the monitor to the trainer; None if there is none."""
        return self.content(f"request/{name}")

    def put_request(self, name: str, content: dict[str, Any]) -> None:
        """Add or replace a request from the monitor to the trainer."""
        self.put_content(f"request/{name}", content)

    def put_content(self, key: str, content: dict[str, Any]) -> None:
        """Add or replace a row or a request, given its content."""
        self._snapshot = None
        body = json.dumps(content, separators=(",", ":")).encode()
        self._txn.put(key.encode(), xxhash.xxh3_64_digest(key.encode() + body) + body)

    # Values that are no JSON, with a checksum like rows.

    def put_value(self, key: str, value: bytes) -> None:
        """Add or replace a value."""
        self._txn.put(key.encode(), xxhash.xxh3_64_digest(key.encode() + value) + value)

    def values(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Yield the values under a prefix with their keys, in order."""
        for key, raw in self._iterate(prefix):
            yield key.decode(errors="replace"), _verify_checksum(raw, self._path, key)

    def last_value(self, prefix: str) -> tuple[str, bytes] | None:
        """Return the last value under a prefix with its key; None if there is none."""
        cursor, start = self._txn.cursor(), prefix.encode()
        is_there = cursor.prev() if cursor.set_range(start + b"\xff") else cursor.last()
        key, raw = bytes(cursor.key()), bytes(cursor.value())
        if not is_there or not key.startswith(start):
            return None
        return key.decode(errors="replace"), _verify_checksum(raw, self._path, key)

    def next_key(self, key: str) -> str | None:
        """Return the first key that is not before `key`; None if there is none."""
        cursor = self._txn.cursor()
        return bytes(cursor.key()).decode(errors="replace") if cursor.set_range(key.encode()) else None

    def _iterate(self, prefix: str) -> Iterator[tuple[bytes, bytes]]:
        cursor, start = self._txn.cursor(), prefix.encode()
        found = cast("Iterator[tuple[bytes, bytes]]", cursor.iternext()) if cursor.set_range(start) else iter(())
        return takewhile(lambda item: item[0].startswith(start), found)

    def _decode(self, raw: bytes, kind: type[Row], key: bytes) -> Row:
        content = _parse(raw, self._path, key)
        names = _list_fields(kind)  # type: ignore[arg-type]
        if not names.issuperset(content):  # a newer version wrote the row
            content = {name: value for name, value in content.items() if name in names}
        try:
            return kind(**content)
        except TypeError as error:
            raise CorruptCatalog(self._path, f"row {key.decode(errors='replace')}: {error}") from error


@functools.cache
def _list_fields(kind: type[Any]) -> frozenset[str]:
    return frozenset(f.name for f in fields(kind))


def _parse(raw: bytes, path: Path, key: bytes) -> dict[str, Any]:
    """Return the content of a row."""
    try:
        content = json.loads(_verify_checksum(raw, path, key))
    except ValueError as error:
        raise CorruptCatalog(path, f"row {key.decode(errors='replace')}: it is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise CorruptCatalog(path, f"row {key.decode(errors='replace')}: it is not a JSON object")
    return content


def _verify_checksum(raw: bytes, path: Path, key: bytes) -> bytes:
    """Return the JSON of a row."""
    if xxhash.xxh3_64_digest(key + raw[8:]) != raw[:8]:
        raise CorruptCatalog(path, f"row {key.decode(errors='replace')}: the checksum differs")
    return raw[8:]


@dataclass(slots=True)
class Change:
    """A change of rows, and the conditions under which it is made.

    Attributes:
        puts: the rows to write, by key. A row is a dataclass, or the content of a request.
        deletes: the keys of the rows to delete.
        expects: rows that must be as they are here, by key; None for a row that must not exist.
        timelines: the numbers of all timelines that must exist; None if they do not matter.
        marks: `archived` and `persisted`, to be set in the row of watermarks; None to leave them.
    """

    puts: dict[str, Any] = field(default_factory=dict)
    deletes: list[str] = field(default_factory=list)
    expects: dict[str, Any] = field(default_factory=dict)
    timelines: list[int] | None = None
    marks: tuple[int, int] | None = None

    def __bool__(self) -> bool:
        return bool(self.puts or self.deletes or self.marks)

    def apply(self, tables: Tables) -> bool:
        """Make the change; return False, and change nothing, if a condition does not hold."""
        if any(tables.content(key) != content_of(row) for key, row in self.expects.items()):
            return False
        if self.timelines is not None and self.timelines != [row.number for row in tables.rows("timeline/", TimelineRow)]:
            return False
        for key in self.deletes:
            tables.delete(key)
        for key, row in self.puts.items():
            tables.put_content(key, content_of(row) or {})
        if self.marks is not None:
            archived, persisted = self.marks
            before = tables.get("watermarks", Watermarks) or Watermarks()
            # If the trainer died, `committed` in the catalog may be too low. An archived step was committed.
            committed, synced = max(before.committed, archived), max(before.synced, persisted)
            after = replace(before, committed=committed, synced=synced, archived=archived, persisted=persisted)
            tables.put("watermarks", after)
        return True

    def is_made(self, tables: Tables) -> bool:
        """Return True if the rows are as the change makes them."""
        marks = tables.get("watermarks", Watermarks) or Watermarks()
        return (
            all(tables.content(key) == content_of(row) for key, row in self.puts.items())
            and all(tables.content(key) is None for key in self.deletes)
            and self.marks in (None, (marks.archived, marks.persisted))
        )


def content_of(row: Any) -> dict[str, Any] | None:
    """Return a row as JSON has it, so that contents can be compared."""
    if row is None:
        return None
    content: dict[str, Any] = json.loads(json.dumps(row if isinstance(row, dict) else asdict(row)))
    return content
