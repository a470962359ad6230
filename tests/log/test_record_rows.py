"""The rows of records by themselves: what is found in them, the space that they take, and how those of pruned segments go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import disks
from tranlogs.base.config import CATALOG_BYTES_RESERVED, MIB
from tranlogs.catalog import Catalog, SegmentRow, segment_key
from tranlogs.catalog import catalog as catalog_module
from tranlogs.log.record_format import EntryKind, Location, digest, extent_end, pack_head
from tranlogs.log.record_rows import RecordRow, add_records, read_records, sweep_records

PAYLOAD = 100


def rows(ordinal: int, sequences: range) -> list[RecordRow]:
    """Records without a gap, of which each step has two."""
    made, offset = [], sequences.start * extent_end(0, PAYLOAD, 0)
    for sequence in sequences:
        head = pack_head(ordinal, sequence, sequence // 2, EntryKind.STEP, PAYLOAD, b"", digest(bytes(64)))
        end = extent_end(offset, PAYLOAD, 0)
        made.append(RecordRow(ordinal, sequence, offset, end, head))
        offset = end
    return made


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    made = Catalog.open(tmp_path, writable=True)
    yield made
    made.close()


def add(catalog: Catalog, records: list[RecordRow], group: int = 1000) -> None:
    for at in range(0, len(records), group):
        with catalog.transaction() as tables:
            add_records(tables, records[at : at + group])


def found(catalog: Catalog, ordinal: int) -> list[Location]:
    return list(catalog.read(lambda tables: read_records(tables, ordinal)))


def assert_has(catalog: Catalog, ordinal: int, sequences: range) -> None:
    expected = [(row.sequence, row.offset, row.end) for row in rows(ordinal, sequences)]
    assert [(one.head.sequence, one.offset, one.end) for one in found(catalog, ordinal)] == expected


@pytest.mark.disks
def test_records_of_a_while_have_space_reserved(memory_path: Path) -> None:
    """So that a log that goes on in recycled segments, on a full disk, is not stopped by its catalog."""
    with disks.memory_disk(memory_path / "disk", 16 * MIB) as point:
        made = Catalog.open(point, writable=True)
        add(made, rows(1, range(10_000)))
        disks.fill(point)
        add(made, rows(1, range(10_000, 13_000)), 3)
        assert_has(made, 1, range(13_000))
        made.close()


def test_records_come_back_by_segment_in_groups_of_any_size(catalog: Catalog) -> None:
    """A group may end one segment and begin the next."""
    for ordinal, group in ((1, 1), (7, 29), (8, 30), (4_000_000_000, 31)):
        add(catalog, rows(ordinal, range(1, 95)), group)
    add(catalog, [*rows(9, range(1, 95)), *rows(10, range(95, 100))])
    for ordinal in (1, 7, 8, 9, 4_000_000_000):
        assert_has(catalog, ordinal, range(1, 95))
    assert_has(catalog, 10, range(95, 100))
    assert found(catalog, 2) == []
    catalog.read(lambda tables: tables.check())


def test_rows_of_pruned_segments_go_and_their_pages_are_used_again(catalog: Catalog) -> None:
    for ordinal in range(1, 13):
        add(catalog, rows(ordinal, range(4000)))
        start: int | None = 0
        while start is not None:  # some at a time
            with catalog.transaction() as tables:
                tables.put(segment_key(ordinal), SegmentRow(ordinal, "0", "x", 1, "open"))
                tables.put(segment_key(ordinal - 1), SegmentRow(ordinal - 1, "0", "x", 1, "retired"))
                start = sweep_records(tables, start)
    assert [len(found(catalog, ordinal)) for ordinal in range(1, 13)] == [0] * 11 + [4000]
    assert catalog.path.stat().st_size < 2 * MIB + CATALOG_BYTES_RESERVED


def test_the_map_grows_beside_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a record takes at most 200 bytes of it."""
    monkeypatch.setattr(catalog_module, "CATALOG_BYTES", MIB)
    made = Catalog.open(tmp_path, writable=True)
    for start in range(0, 20_000, 200):
        add(made, rows(1, range(start, start + 200)))
        if start % 4000 == 0:
            assert len(found(made, 1)) == start + 200
    assert MIB < made.path.stat().st_size < 20_000 * 200 + CATALOG_BYTES_RESERVED
    made.close()
    monkeypatch.setattr(catalog_module, "CATALOG_BYTES", MIB // 4)  # less than the file has
    again = Catalog.open(tmp_path, writable=True)
    add(again, rows(1, range(20_000, 20_100)))
    assert_has(again, 1, range(20_100))
    again.close()
