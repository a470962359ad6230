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
from tranlogs.log.record_rows import RecordRow, add_records, complete_records, read_records, sweep_records

PAYLOAD = 100


def rows(ordinal: int, sequences: range) -> list[RecordRow]:
    """Records without a gap, each a step."""
    made, size, head = list[RecordRow](), extent_end(0, PAYLOAD, 0), bytes(64)
    for sequence in range(sequences.stop):
        head = pack_head(ordinal, sequence, sequence, EntryKind.STEP, PAYLOAD, b"", digest(head))
        made.append(RecordRow(ordinal, sequence, sequence * size, (sequence + 1) * size, head))
    return made[sequences.start :]


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


@pytest.mark.parametrize("group", [1, 2, 29, 30, 31, 1000])
def test_records_come_back_by_segment_in_groups_of_any_size(catalog: Catalog, group: int) -> None:
    for ordinal in (1, 7, 4_000_000_000):
        add(catalog, rows(ordinal, range(1, 95)), group)
    for ordinal in (1, 7, 4_000_000_000):
        assert_has(catalog, ordinal, range(1, 95))
    assert found(catalog, 2) == []
    assert catalog.read(lambda tables: len(tables.keys("record/0000000007/"))) == 4  # 30 a row
    catalog.read(lambda tables: tables.check())


def test_a_group_may_end_one_segment_and_begin_the_next(catalog: Catalog) -> None:
    add(catalog, rows(1, range(40)))
    with catalog.transaction() as tables:
        add_records(tables, [*rows(1, range(40, 50)), *rows(2, range(50, 60)), *rows(3, range(60, 61))])
    for ordinal, sequences in ((1, range(50)), (2, range(50, 60)), (3, range(60, 61))):
        assert_has(catalog, ordinal, sequences)


def test_a_gap_in_the_file_begins_a_new_row(catalog: Catalog) -> None:
    records = rows(1, range(10))
    with catalog.transaction() as tables:
        add_records(tables, records[:3])
        add_records(tables, records[5:])
    assert [one.head.sequence for one in found(catalog, 1)] == [0, 1, 2, 5, 6, 7, 8, 9]
    assert [one.offset for one in found(catalog, 1)] == [row.offset for row in records[:3] + records[5:]]


@pytest.mark.parametrize("listed", [0, 1, 21, 45, 100])
def test_what_a_scan_has_found_completes_the_rows(catalog: Catalog, listed: int) -> None:
    """A head is damaged in the file. Where recovery has read it from its row, the row stays."""
    segment = SegmentRow(1, f"{1:016x}", "x", 1, "open")
    first = pack_head(1, 0, 0, EntryKind.SEGMENT, PAYLOAD, b"", 0)
    records = [rows(1, range(1))[0]._replace(head=first), *rows(1, range(1, 100))]
    add(catalog, records)
    everything = found(catalog, 1)
    with catalog.transaction() as tables:
        for key in tables.keys("record/"):
            tables.delete(key)
        add_records(tables, records[:listed])
        complete_records(tables, segment, [*everything[:20], *everything[21:]])
    assert found(catalog, 1) == (everything if listed > 20 else [*everything[:20], *everything[21:]])


@pytest.mark.parametrize("wrong", ["gap", "other segment"])
def test_rows_that_do_not_fit_are_replaced_by_what_a_scan_has_found(catalog: Catalog, wrong: str) -> None:
    segment = SegmentRow(1, f"{2 if wrong == 'other segment' else 1:016x}", "x", 1, "open")
    first = pack_head(1, 0, 0, EntryKind.SEGMENT, PAYLOAD, b"", 0)
    records = [rows(1, range(1))[0]._replace(head=first), *rows(1, range(1, 100))]
    add(catalog, records if wrong == "other segment" else [*records[:30], *records[40:]])
    scanned = found(catalog, 1)[:25]
    with catalog.transaction() as tables:
        complete_records(tables, segment, scanned)
    assert found(catalog, 1) == scanned


def test_rows_of_pruned_segments_go_some_at_a_time(catalog: Catalog) -> None:
    with catalog.transaction() as tables:
        for ordinal in (3, 9):
            tables.put(segment_key(ordinal), SegmentRow(ordinal, "0", "x", 1, "sealed"))
        tables.put(segment_key(5), SegmentRow(5, "0", "x", 1, "retired"))
        for ordinal in (1, 3, 5, 9, 11):
            add_records(tables, rows(ordinal, range(7000)))
    start: int | None = 0
    rounds = 0
    while start is not None:
        with catalog.transaction() as tables:
            start = sweep_records(tables, start)
        rounds += 1
    assert rounds > 3 * 7000 // 30 // 200
    assert [len(found(catalog, one)) for one in (1, 3, 5, 9, 11)] == [0, 7000, 0, 7000, 0]


def test_a_million_records_take_at_most_200_MB(catalog: Catalog) -> None:
    for ordinal in range(100):
        add(catalog, rows(ordinal, range(10_000)), 100)
    assert catalog.path.stat().st_size < 200e6
    assert_has(catalog, 99, range(10_000))


def test_pages_of_forgotten_rows_are_used_again(catalog: Catalog) -> None:
    for ordinal in range(12):
        add(catalog, rows(ordinal, range(4000)))
        start: int | None = 0
        while start is not None:
            with catalog.transaction() as tables:
                tables.put(segment_key(ordinal), SegmentRow(ordinal, "0", "x", 1, "open"))
                tables.delete(segment_key(ordinal - 1))
                start = sweep_records(tables, start)
    assert catalog.path.stat().st_size < 2 * MIB + CATALOG_BYTES_RESERVED


def test_the_map_grows_beside_a_reader(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_module, "CATALOG_BYTES", MIB)
    catalog.close()
    made = Catalog.open(tmp_path, writable=True)
    for start in range(0, 20_000, 100):
        add(made, rows(1, range(start, start + 100)))
        if start % 2000 == 0:
            assert len(found(made, 1)) == start + 100
    assert made._map_bytes > MIB
    made.close()
    monkeypatch.setattr(catalog_module, "CATALOG_BYTES", MIB // 4)  # less than the file has
    again = Catalog.open(tmp_path, writable=True)
    add(again, rows(1, range(20_000, 20_100)))
    assert_has(again, 1, range(20_100))
    again.close()


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
