"""Every region of a segment and of an LMDB file, with all places where a file has it: what damage can hit."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.damage import Span
from tranlogs.log.reader import Record, SegmentReader
from tranlogs.log.record_format import Location, RecordKind

Regions = dict[str, list[Span]]

_PAGE, _HEADER = 4096, 16  # bytes of a page of LMDB, and of its header
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4  # flags of a page
_IS_BIG = 1  # flag of a node whose value lies in overflow pages


def segment_regions(path: Path, locations: Sequence[Location]) -> Regions:
    """Map a segment's records, what lies between them, and what lies behind them."""
    found: Regions = {}

    def add(region: str, start: int, end: int) -> None:
        if start < end:
            found.setdefault(region, []).append((start, end))

    with SegmentReader(path) as reader:
        for location in locations:
            head, kind = location.head, location.head.kind.name
            end = location.description_offset + head.description_bytes
            arrays = sorted((row[0], row[0] + row[1]) for row in _arrays_within(reader.decode(location), location))
            payload_end = min([location.description_offset, *(start for start, _ in arrays)])
            add(f"head of {kind}", location.offset, location.payload_offset)
            add(f"payload of {kind}", location.payload_offset, payload_end)
            for span in arrays:
                add(f"array in the body of {kind}", *span)
            add(f"description of {kind}", location.description_offset, end)
            add("padding", end, location.end)
    add("space behind the last record", locations[-1].end, path.stat().st_size)
    return found


def _arrays_within(entry: Record, location: Location) -> Iterator[tuple[int, int]]:
    """Yield place and length of the arrays that lie in this record, and not in one that it refers to."""
    for _, row in entry.arrays():
        if location.payload_offset <= row[0] < location.end:
            yield row[0], row[1]


def segment_region_names() -> set[str]:
    """Return the regions that segments of a run with records of all kinds have."""
    names = {f"{part} of {kind.name}" for kind in RecordKind for part in ("head", "description")}
    names |= {f"payload of {kind.name}" for kind in (RecordKind.STEP, RecordKind.UNIT, RecordKind.IMAGE)}
    ends = {f"array in the body of {kind.name}" for kind in RecordKind if kind.is_boundary}
    return names | ends | HARMLESS


HARMLESS = {"padding", "space behind the last record"}

LMDB_REGIONS = {
    "newest meta page",
    "older meta page",
    "header of a branch page",
    "header of a leaf page",
    "header of an overflow page",
    "pointers of a page",
    "unused part of a page",
    "header of a node",
    "key of a row",
    "list of free pages",
    "free page",
    "space behind the last page",
}


def lmdb_regions(path: Path) -> Regions:
    """Map the pages of an LMDB file. The rows are regions by kind: "row segment/", "row watermarks".

    LMDB's structures are in its mdb.c: MDB_page, MDB_meta, MDB_db, MDB_node.
    """
    raw, found = path.read_bytes(), Regions()

    def add(region: str, start: int, end: int) -> None:
        if start < end:
            found.setdefault(region, []).append((start, end))

    def walk(page: int, is_free_list: bool) -> None:
        at = page * _PAGE
        (flags, lower, upper) = struct.unpack_from("<HHH", raw, at + 10)
        assert flags in (_BRANCH, _LEAF), f"page {page} has flags {flags}"
        add(f"header of a {'branch' if flags == _BRANCH else 'leaf'} page", at, at + _HEADER)
        add("pointers of a page", at + _HEADER, at + lower)
        add("unused part of a page", at + lower, at + upper)
        for (pointer,) in struct.iter_unpack("<H", raw[at + _HEADER : at + lower]):
            node = at + pointer
            low, high, node_flags, key_bytes = struct.unpack_from("<HHHH", raw, node)
            add("header of a node", node, node + 8)
            key_end = node + 8 + key_bytes
            if flags == _BRANCH:
                add("key of a row", node + 8, key_end)
                walk(low | high << 16 | node_flags << 32, is_free_list)
                continue
            key, nbytes, value = raw[node + 8 : key_end], low | high << 16, key_end
            if node_flags & _IS_BIG:
                (big,) = struct.unpack_from("<Q", raw, value)
                add("header of an overflow page", big * _PAGE, big * _PAGE + _HEADER)
                value = big * _PAGE + _HEADER
            if is_free_list:
                add("list of free pages", node + 8, value + nbytes)
                (count,) = struct.unpack_from("<Q", raw, value)
                for free in struct.unpack_from(f"<{count}Q", raw, value + 8):
                    add("free page", free * _PAGE, (free + 1) * _PAGE)
                continue
            add("key of a row", node + 8, key_end)
            name, slash, _ = key.decode().partition("/")
            add(f"row {name}{slash}", value, value + nbytes)

    metas = sorted(range(2), key=lambda page: int(struct.unpack_from("<Q", raw, page * _PAGE + 144)[0]))
    newest = metas[1] * _PAGE
    add("older meta page", metas[0] * _PAGE, metas[0] * _PAGE + 152)
    add("newest meta page", newest, newest + 152)
    free_root, root, last_page = struct.unpack_from("<Q40xQQ", raw, newest + 80)
    for tree, is_free_list in ((root, False), (free_root, True)):
        if tree != (1 << 64) - 1:
            walk(tree, is_free_list)
    add("space behind the last page", (last_page + 1) * _PAGE, len(raw))
    return found
