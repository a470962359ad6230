"""The rows of records: gone, wrong, behind their segments or ahead of them, no record is wrong and no step is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import disks
from tests.support.abandon import abandoned_copy
from tests.support.record_rows import change_rows, packed_head
from tests.support.toy import ToyTrainer, open_toy
from tests.support.toy_steps import SIZES, state_at
from tranlogs.base.config import CATALOG_BYTES_RESERVED, MIB, JournalConfig
from tranlogs.catalog import Catalog, SegmentRow, segment_key
from tranlogs.catalog import catalog as catalog_module
from tranlogs.log.record_format import Location, RecordKind, digest, extent_end
from tranlogs.log.record_rows import RecordRow, add_records, read_records, sweep_records
from tranlogs.recovery.journal_facts import read_facts
from tranlogs.retention import EverySteps, KeepLatest

PAYLOAD = 100


def rows(ordinal: int, sequences: range) -> list[RecordRow]:
    """Records without a gap, each a step."""
    made, size, head = list[RecordRow](), extent_end(0, PAYLOAD, 0), bytes(64)
    for sequence in range(sequences.stop):
        head = packed_head(ordinal, sequence, sequence, RecordKind.STEP, PAYLOAD, b"", digest(head))
        made.append(RecordRow(ordinal, sequence, sequence * size, (sequence + 1) * size, head))
    return made[sequences.start :]


@pytest.fixture
def catalog(memory_path: Path) -> Iterator[Catalog]:
    made = Catalog.open(memory_path, writable=True)
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
    for ordinal, group in ((1, 1), (7, 62), (8, 63), (4_000_000_000, 64)):
        add(catalog, rows(ordinal, range(1, 195)), group)
    add(catalog, [*rows(9, range(1, 195)), *rows(10, range(195, 200))])
    for ordinal in (1, 7, 8, 9, 4_000_000_000):
        assert_has(catalog, ordinal, range(1, 195))
    assert_has(catalog, 10, range(195, 200))
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


def test_the_map_grows_beside_a_reader(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a record takes at most 80 bytes of it."""
    monkeypatch.setattr(catalog_module, "CATALOG_BYTES", MIB)
    made, every = Catalog.open(memory_path, writable=True), rows(1, range(20_100))
    for start in range(0, 20_000, 200):
        add(made, every[start : start + 200])
        if start % 4000 == 0:
            assert len(found(made, 1)) == start + 200
    assert MIB < made.path.stat().st_size < 20_000 * 80 + CATALOG_BYTES_RESERVED
    made.close()
    monkeypatch.setattr(catalog_module, "CATALOG_BYTES", MIB // 4)  # less than the file has
    again = Catalog.open(memory_path, writable=True)
    add(again, every[20_000:])
    assert_has(again, 1, range(20_100))
    again.close()


def open_run(run: Path) -> ToyTrainer:
    config = JournalConfig(durability="machine", segment_bytes=MIB)
    return open_toy(run, sizes=SIZES, config=config, policy=EverySteps(10**9), retention=KeepLatest(1))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 30 steps in three segments, as a kill leaves it."""
    folder = tmp_path_factory.mktemp("records")
    trainer = open_run(folder / "run")
    trainer.recover()
    for until in (10, 20, 30):
        trainer.train(until)
        if until < 30:
            assert trainer.journal.log.wal is not None
            trainer.journal.log.wal.roll()
    abandoned_copy(trainer.journal, folder / "killed")
    trainer.journal.close()
    return folder / "killed"


@pytest.fixture
def run(made: Path, memory_path: Path) -> Path:
    return Path(shutil.copytree(made, memory_path / "run"))


def assert_survives(run: Path) -> None:
    """Readers find everything, recovery lands exactly, and training goes on."""
    facts = read_facts(run / "rank0")
    assert max(one.head.step for segment in facts.segments for one in segment.locations) == 30
    for step in (30, 35):
        trainer = open_run(run)
        assert trainer.recover().step == step
        assert trainer.state.everything() == state_at(step)
        trainer.train(step + 5)
        trainer.journal.close()


CHANGES: dict[str, Callable[[str, bytes], bytes | None]] = {
    "gone": lambda key, value: None,
    "offset": lambda key, value: (64).to_bytes(8, "little") + value[8:],
    "head": lambda key, value: value[:28] + bytes([value[28] ^ 1]) + value[29:],
    "length": lambda key, value: value[:55] + bytes([value[55] ^ 0x80]) + value[56:],
    "cut off": lambda key, value: value[: len(value) // 2],
}


@pytest.mark.parametrize("change", CHANGES)
def test_wrong_values_in_a_sound_environment_are_not_believed(run: Path, change: str) -> None:
    change_rows(run / "rank0", CHANGES[change])
    assert_survives(run)
