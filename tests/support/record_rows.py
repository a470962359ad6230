"""Heads of records as tests make them, and their rows in a catalog."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tranlogs.base.config import FORMAT_VERSION
from tranlogs.catalog import Catalog
from tranlogs.log.record_format import Head, RecordKind, checksum_of, pack_head


def packed_head(
    segment_id: int,
    sequence: int,
    step: int,
    kind: RecordKind,
    payload_bytes: int,
    description: bytes,
    chain: int,
    covered: int = 0,
) -> bytes:
    """The head of a record with this description."""
    about = len(description), payload_bytes, checksum_of(description), chain
    return pack_head(Head(segment_id, sequence, step, kind, FORMAT_VERSION, covered, *about))


def change_rows(journal: Path, change: Callable[[str, bytes], bytes | None]) -> None:
    """Replace the value of each row of records by what `change` returns, with a checksum that fits; None deletes the row."""
    catalog = Catalog.open(journal, writable=True)
    try:
        with catalog.transaction() as tables:
            for key, value in list(tables.values("record/")):
                changed = change(key, value)
                if changed is None:
                    tables.delete(key)
                else:
                    tables.put_value(key, changed)
    finally:
        catalog.close()


def forget_records(journal: Path) -> None:
    """Delete all rows of records: nothing but the segments holds a copy of their heads then."""
    change_rows(journal, lambda key, value: None)
