"""The rows inside one transaction: JSON with a checksum of key and JSON in front."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import lmdb
import xxhash

from ..errors import CorruptCatalog
from .rows import KINDS, Row

Known = dict[str, dict[str, tuple[bytes, Any]]]  # by prefix and key: the bytes, and the (immutable) row that they are

_KEPT = ("segment/", "checkpoint/")


class Tables:
    """The rows inside one transaction."""

    def __init__(self, txn: lmdb.Transaction, path: Path, known: Known | None = None) -> None:
        """`known`: rows of segments and checkpoints as they were last read: those whose bytes are the same are not decoded anew
        (a run of months has a hundred thousand)."""
        self._txn, self._path, self._known = txn, path, known

    def get(self, key: str, kind: type[Row]) -> Row | None:
        """One row, None where there is none."""
        raw = self._txn.get(key.encode())
        return None if raw is None else self._decode(bytes(raw), kind, key)

    def rows(self, prefix: str, kind: type[Row]) -> list[Row]:
        """All rows under a prefix, in the order of their keys."""
        if self._known is None or prefix not in _KEPT:
            return [self._decode(raw, kind, key) for key, raw in self._under(prefix)]
        before, now = self._known.get(prefix, {}), {}
        for key, raw in self._under(prefix):
            row = before.get(key)
            now[key] = row if row is not None and row[0] == raw else (raw, self._decode(raw, kind, key))
        self._known[prefix] = now
        return [row for _, row in now.values()]

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
        for prefix, kind in KINDS.items():
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
        known = _names(kind)  # type: ignore[arg-type]
        return kind(**{name: value for name, value in content.items() if name in known})


@functools.cache
def _names(kind: type[Any]) -> frozenset[str]:
    return frozenset(f.name for f in fields(kind))


def _checked(raw: bytes, path: Path, key: str) -> bytes:
    if xxhash.xxh3_64_digest(key.encode() + raw[8:]) != raw[:8]:
        raise CorruptCatalog(path, f"row {key}: its checksum differs")
    return raw[8:]
