"""The rows inside one transaction: JSON with a checksum of key and JSON in front."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

import lmdb
import xxhash

from ..base.errors import CorruptCatalog
from .rows import KINDS, Row

_KEPT = ("segment/", "checkpoint/")


@dataclass(frozen=True, slots=True)
class Read:
    """The rows under a prefix, as they were last read.

    Attributes:
        snapshot: number of the committed transaction whose state they are; None for one that is under way.
        rows: by key, the bytes and the (immutable) row that they are.
    """

    snapshot: int | None
    rows: dict[bytes, tuple[bytes, Any]]


Known = dict[str, Read]  # by prefix


class Tables:
    """The rows inside one transaction."""

    def __init__(self, txn: lmdb.Transaction, path: Path, known: Known | None = None, snapshot: int | None = None) -> None:
        """`known`: rows of segments and checkpoints as they were last read (a run of months has a hundred thousand): none is
        read anew if no transaction was committed since, and else only those are decoded anew whose bytes differ.
        `snapshot`: the number of the newest transaction that `txn` sees."""
        self._txn, self._path, self._known, self._snapshot = txn, path, known, snapshot

    def get(self, key: str, kind: type[Row]) -> Row | None:
        """One row, None where there is none."""
        raw = self._txn.get(key.encode())
        return None if raw is None else self._decode(bytes(raw), kind, key.encode())

    def rows(self, prefix: str, kind: type[Row]) -> list[Row]:
        """All rows under a prefix, in the order of their keys."""
        if self._known is None or prefix not in _KEPT:
            return [self._decode(raw, kind, key) for key, raw in self._under(prefix)]
        known = self._known.get(prefix) or Read(None, {})
        if self._snapshot is None or known.snapshot != self._snapshot:
            before, now = known.rows, {}
            for key, raw in self._under(prefix):
                row = before.get(key)
                now[key] = row if row is not None and row[0] == raw else (raw, self._decode(raw, kind, key))
            known = self._known[prefix] = Read(self._snapshot, now)
        return [row for _, row in known.rows.values()]

    def keys(self, prefix: str) -> list[str]:
        """The keys under a prefix, in order."""
        cursor, start = self._txn.cursor(), prefix.encode()
        found = cast("Iterator[bytes]", cursor.iternext(values=False)) if cursor.set_range(start) else iter(())
        return [key.decode() for key in takewhile(lambda key: key.startswith(start), found)]

    def check(self) -> None:
        """Read every row.

        Raises:
            CorruptCatalog: one is damaged.
        """
        for key, raw in self._under(""):
            _checked(raw, self._path, key)
        for prefix, kind in KINDS.items():
            self.rows(prefix, kind)

    def put(self, key: str, row: Any) -> None:
        """Add or replace a row (a dataclass)."""
        self._put(key, asdict(row))

    def delete(self, key: str) -> None:
        """Remove a row."""
        self._snapshot = None
        self._txn.delete(key.encode())

    def request(self, name: str) -> dict[str, Any] | None:
        """A request from the monitor to the trainer."""
        raw = self._txn.get(f"request/{name}".encode())
        return None if raw is None else json.loads(_checked(bytes(raw), self._path, f"request/{name}".encode()))

    def put_request(self, name: str, content: dict[str, Any]) -> None:
        """Ask the trainer for something."""
        self._put(f"request/{name}", content)

    def _put(self, key: str, content: dict[str, Any]) -> None:
        self._snapshot = None
        body = json.dumps(content, separators=(",", ":")).encode()
        self._txn.put(key.encode(), xxhash.xxh3_64_digest(key.encode() + body) + body)

    def _under(self, prefix: str) -> Iterator[tuple[bytes, bytes]]:
        cursor, start = self._txn.cursor(), prefix.encode()
        found = cast("Iterator[tuple[bytes, bytes]]", cursor.iternext()) if cursor.set_range(start) else iter(())
        return takewhile(lambda item: item[0].startswith(start), found)

    def _decode(self, raw: bytes, kind: type[Row], key: bytes) -> Row:
        content = json.loads(_checked(raw, self._path, key).decode())
        known = _names(kind)  # type: ignore[arg-type]
        if not known.issuperset(content):  # a newer version wrote it
            content = {name: value for name, value in content.items() if name in known}
        return kind(**content)


@functools.cache
def _names(kind: type[Any]) -> frozenset[str]:
    return frozenset(f.name for f in fields(kind))


def _checked(raw: bytes, path: Path, key: bytes) -> bytes:
    if xxhash.xxh3_64_digest(key + raw[8:]) != raw[:8]:
        raise CorruptCatalog(path, f"row {key.decode(errors='replace')}: its checksum differs")
    return raw[8:]
