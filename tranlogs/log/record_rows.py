"""The records of the log in the catalog: head and place of every record, many records in one row.

The sync thread writes them in the transaction that makes a group durable, after it has flushed the segment. So a record that
has a row is in its segment, too. Records behind the last row are found by a scan of the open segment.

    key    record/<ordinal of the segment>/<sequence number of the first record in the row>
    value  offset of the first record in its file (u64, little-endian), then the 64 head bytes of up to 63 records

The records of one row follow each other in the file without a gap, so heads give the offsets of all. A full row
fills a page of its own. Of rows that share pages LMDB leaves every page half empty, because it splits a page in the middle.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..catalog import SegmentRow, Tables, segment_key
from .record_format import HEAD, PLACE_BITS, Location, Records, pack_head

_PREFIX = "record/"
_OFFSET = struct.Struct("<Q")
_OFFSET_MAX = 1 << PLACE_BITS
_HEADS_MAX = 63
_SWEPT_MAX = 200  # segments and rows that one transaction looks at


class RecordRow(NamedTuple):
    """A record to be written."""

    ordinal: int
    sequence: int
    offset: int
    end: int
    head: bytes


def _key(ordinal: int, sequence: int) -> str:
    return f"{_PREFIX}{ordinal:010d}/{sequence:020d}"


def add_records(tables: Tables, records: Iterable[RecordRow]) -> None:
    """Add records, in order."""
    key, value, ordinal, end = "", b"", -1, -1
    for record in records:
        if record.ordinal != ordinal:
            if key:
                tables.put_value(key, value)
            key, value, end = _read_last(tables, record.ordinal)
            ordinal = record.ordinal
        if not key or record.offset != end or len(value) >= _OFFSET.size + _HEADS_MAX * HEAD.size:
            if key:
                tables.put_value(key, value)
            key, value = _key(ordinal, record.sequence), _OFFSET.pack(record.offset)
        value += record.head
        end = record.end
    if key:
        tables.put_value(key, value)


def _read_last(tables: Tables, ordinal: int) -> tuple[str, bytes, int]:
    """Return key and value of the last row of a segment, and the end of its last record; ("", b"", -1) if there is none."""
    last = tables.last_value(f"{_PREFIX}{ordinal:010d}/")
    if last is None:
        return "", b"", -1
    found = Records(_unpack([last]))
    return (*last, found[-1].end) if found else ("", b"", -1)


def read_records(tables: Tables, ordinal: int) -> Records:
    """Return the records of a segment that have rows, in order.

    Raises:
        CorruptCatalog: a row is damaged.
    """
    return Records(_unpack(tables.values(f"{_PREFIX}{ordinal:010d}/")))


def _unpack(rows: Iterable[tuple[str, bytes]]) -> list[tuple[int, bytes]]:
    """Return of each row the offset of its first record, and its heads."""
    sound = [value for _, value in rows if len(value) > _OFFSET.size and len(value) % HEAD.size == _OFFSET.size]
    return [(min(_OFFSET.unpack_from(value)[0], _OFFSET_MAX), value[_OFFSET.size :]) for value in sound]


def complete_records(tables: Tables, row: SegmentRow, found: Sequence[Location]) -> None:
    """Write the records of a segment that a scan has found and that have no row yet.

    Rows from which recovery has read stay, even if the heads in the file are damaged. Rows that recovery did not believe are
    replaced.
    """
    known = read_records(tables, row.ordinal)
    if known.is_sound(row.number):
        found = [one for one in found if one.head.sequence > known[-1].head.sequence]
    else:
        delete_records(tables, row.ordinal)
    records = [RecordRow(row.ordinal, one.head.sequence, one.offset, one.end, pack_head(one.head)) for one in found]
    add_records(tables, records)


def delete_records(tables: Tables, ordinal: int) -> None:
    """Delete the rows of the records of a segment."""
    for key in tables.keys(f"{_PREFIX}{ordinal:010d}/"):
        tables.delete(key)


def sweep_records(tables: Tables, start: int) -> int | None:
    """Delete the rows of segments that are pruned, from the segment `start` on, in a bounded number of steps.

    Returns:
        Where the next call continues; None if all segments have been looked at.
    """
    for _ in range(_SWEPT_MAX):
        key = tables.next_key(_key(start, 0))
        if key is None or not key.startswith(_PREFIX):
            return None
        start = int(key[len(_PREFIX) :].partition("/")[0])
        row = tables.get(segment_key(start), SegmentRow)
        if row is None or row.state == "retired":
            tables.delete(key)
        else:
            start += 1
    return start
