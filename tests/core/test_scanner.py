"""The scanner: finds what was committed by plain reads, and nothing else."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tranlogs.catalog import SegmentRow
from tranlogs.config import FORMAT_VERSION
from tranlogs.errors import UnknownFormat
from tranlogs.log import segment_file as files
from tranlogs.log.record import HEAD, MAGIC, EntryKind, Location, digest, pack_head
from tranlogs.log.scanner import scan
from tranlogs.testing.bare_log import BareLog, append_step
from tranlogs.types import dense


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareLog]:
    made = BareLog(tmp_path)
    yield made
    made.close()


def only_segment(bare: BareLog) -> tuple[Path, SegmentRow]:
    assert bare.catalog is not None
    (row,) = [row for row in bare.catalog.segments() if row.state != "ready"]
    return bare.folder / "log" / row.file, row


def filled(bare: BareLog, steps: int = 10, size: int = 3000) -> tuple[Path, SegmentRow]:
    log = bare.open()
    for step in range(1, steps + 1):
        append_step(log, step, size)
    log.close()
    return only_segment(bare)


def sequences(found: list[Location]) -> list[int]:
    return [location.head.sequence for location in found]


def test_entries_come_in_order_and_are_chained(bare: BareLog) -> None:
    path, row = filled(bare)
    found = scan(path, row.number)
    assert sequences(found) == list(range(21))
    assert found[0].head.kind == EntryKind.SEGMENT
    assert [location.head.kind for location in found[1:3]] == [EntryKind.STEP, EntryKind.BOUNDARY]
    for before, after in itertools.pairwise(found[1:]):
        assert after.head.chain == before.head.digest


def test_leaping_finds_the_same(bare: BareLog) -> None:
    path, row = filled(bare, steps=20, size=20_000)
    assert scan(path, row.number, last_sequence=row.last_sequence) == scan(path, row.number)


def test_entries_of_another_segment_are_passed_over(bare: BareLog) -> None:
    path, row = filled(bare)
    assert scan(path, row.number ^ 1) == []


def test_an_entry_being_written_and_an_aborted_one_are_not_found(bare: BareLog) -> None:
    log = bare.open()
    append_step(log, 1, 3000)
    writer = log.begin(100_000, 2)
    writer.add("w", dense(np.ones(6000)))
    assert log._segment is not None
    path, segment_id = log._segment.path, log._segment.segment_id
    raw = (HEAD.pack(MAGIC, 0, segment_id, 3, 2, int(EntryKind.STEP), 1, 0, 0, 0, 0)).ljust(4096, b"\0")
    writer.add("looks like a head", dense(np.frombuffer(raw, np.uint8)))
    assert sequences(scan(path, segment_id)) == [0, 1, 2]
    writer.abort()
    assert sequences(scan(path, segment_id)) == [0, 1, 2]
    append_step(log, 2, 10)
    assert sequences(scan(path, segment_id)) == [0, 1, 2, 3, 4]
    log.close()


def test_a_killed_transaction_s_entry_is_not_found(bare: BareLog, tmp_path: Path) -> None:
    """All values are put, the head as well; only the commit is missing."""
    log = bare.open()
    append_step(log, 1, 3000)
    segment = log._segment
    assert segment is not None
    head = pack_head(segment.segment_id, 3, 2, EntryKind.STEP, b"payload", log.position.chain)
    txn = segment.begin(3)
    txn.put(np.frombuffer(head.ljust(4096, b"\0"), np.uint8))
    copy = tmp_path / "copy"
    shutil.copyfile(segment.path, copy)
    txn.abort()
    log.close()
    assert sequences(scan(copy, segment.segment_id)) == [0, 1, 2]


def test_bytes_of_a_tensor_are_never_taken_for_an_entry(bare: BareLog) -> None:
    """A tensor that holds a whole segment of another run, at all page offsets."""
    path, row = filled(bare, steps=5, size=500)
    other = np.fromfile(path, np.uint8)[: row.used_bytes]
    second = BareLog(bare.folder / "second")
    log = second.open()
    log.append(EntryKind.STEP, 1, [(f"w{shift}", dense(np.roll(other, shift))) for shift in range(0, 4096, 512)], {})
    log.close()
    path, row = only_segment(second)
    assert sequences(scan(path, row.number)) == [0, 1]
    assert sequences(scan(path, row.number, last_sequence=1)) == [0, 1]
    second.close()


def test_a_newer_version_is_refused_by_name(bare: BareLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tranlogs.codec.entry.FORMAT_VERSION", FORMAT_VERSION + 6)
    path, row = filled(bare)
    with pytest.raises(UnknownFormat, match=rf"{path.name}: format version {FORMAT_VERSION + 6}"):
        scan(path, row.number)


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        scan(tmp_path / "x.seg", 1)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 8192, 8193])
def test_short_and_empty_files_hold_nothing(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.seg"
    path.write_bytes(b"\1" * size)
    assert scan(path, 1) == []
    assert scan(path, 1, last_sequence=7) == []


def test_a_truncated_file_gives_what_is_left(bare: BareLog) -> None:
    path, row = filled(bare)
    found = scan(path, row.number)
    with path.open("r+b") as file:
        file.truncate(found[7].offset)
    assert scan(path, row.number, last_sequence=row.last_sequence) == found[:7]


def test_a_file_of_another_page_size_is_read(tmp_path: Path) -> None:
    """As a machine with pages of 16 KiB writes it."""
    page_bytes, segment_id, chain, raw = 16_384, 77, 0, bytearray(16_384 * 12)
    raw[page_bytes : page_bytes + 8] = (1).to_bytes(8, "little")
    for sequence in range(3):
        page = 3 + 3 * sequence
        kind = EntryKind.STEP if sequence else EntryKind.SEGMENT
        head = pack_head(segment_id, sequence, sequence, kind, b"payload", chain)
        chain = digest(head)
        at = page * page_bytes
        raw[at : at + 16] = page.to_bytes(8, "little") + (4 << 16).to_bytes(4, "little") + (2).to_bytes(4, "little")
        raw[at + 16 : at + 16 + len(head) + 7] = head + b"payload"
    path = tmp_path / files.segment_name(1, segment_id)
    path.write_bytes(raw)
    found = scan(path, segment_id)
    assert sequences(found) == [0, 1, 2]
    assert {location.page_bytes for location in found} == {page_bytes}


@given(st.data())
@settings(max_examples=60)
def test_damage_takes_nothing_away_but_the_entry_it_hits(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path, row, found = _damage_case(tmp_path_factory)
    victim = data.draw(st.integers(1, len(found) - 1))
    at = found[victim].offset - HEAD.size - 16 + data.draw(st.integers(0, HEAD.size + 15))
    with path.open("r+b") as file:
        file.seek(at)
        before = file.read(1)
        file.seek(at)
        file.write(bytes([before[0] ^ data.draw(st.integers(1, 255))]))
    try:
        left = sequences(scan(path, row.number, last_sequence=row.last_sequence))
        assert set(left) >= set(sequences(found)) - {found[victim].head.sequence}
        assert left == sorted(set(left))
    finally:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(before)


_cases: list[tuple[Path, SegmentRow, list[Location]]] = []


def _damage_case(factory: pytest.TempPathFactory) -> tuple[Path, SegmentRow, list[Location]]:
    if not _cases:
        bare = BareLog(factory.mktemp("damage"))
        path, row = filled(bare, steps=12, size=3000)
        bare.close()
        _cases.append((path, row, scan(path, row.number)))
    return _cases[0]
