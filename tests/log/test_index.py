"""The log's index by itself: what is found in it, who else reads it, and the space that it takes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import campaign, disks
from tranlogs.base.config import CATALOG_BYTES_RESERVED, FORMAT_VERSION, MIB
from tranlogs.base.errors import CorruptCatalog, LogUnavailable
from tranlogs.log import index as index_module
from tranlogs.log.index import INDEX_NAME, IndexedRecord, LogIndex, delete_index, open_if_sound
from tranlogs.log.record_format import EntryKind, pack_head

TOP = (1 << 64) - 1


def record(segment_id: int, sequence: int, step: int, description: bytes = b"description") -> IndexedRecord:
    head = pack_head(segment_id, sequence, step, EntryKind.STEP, 100, description, 0)
    return IndexedRecord(segment_id, sequence, step, 64 * sequence, head, description)


def filled(index: LogIndex, segment_id: int, steps: range) -> None:
    index.add(record(segment_id, 2 * step + part, step) for step in steps for part in (0, 1))


def fill_up(index: LogIndex, segment_id: int, first: int) -> None:
    """Add records in small groups, many more than there is space for."""
    for start in range(first, 100_000, 1000):
        filled(index, segment_id, range(start, start + 1000))


def sequences(index: LogIndex, segment_id: int, **limits: int) -> list[int]:
    return [location.head.sequence for location in index.locations(segment_id, **limits)]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[LogIndex]:
    made = LogIndex.open(tmp_path, "run", writable=True)
    yield made
    made.close()


def test_records_come_back_by_segment_and_step(index: LogIndex) -> None:
    for segment_id in (0, 7, TOP):
        filled(index, segment_id, range(1, 30))
    for segment_id in (0, 7, TOP):
        assert sequences(index, segment_id) == list(range(2, 60))
        assert sequences(index, segment_id, step=10, last_step=11) == [20, 21, 22, 23]
        assert sequences(index, segment_id, step=29) == [58, 59]
        assert sequences(index, segment_id, step=30) == []
        newest = index.newest(segment_id)
        assert newest is not None
        assert (newest.head.sequence, newest.offset, newest.description) == (59, 64 * 59, b"description")
    assert index.newest(8) is None
    assert sequences(index, 8) == []


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 5, TOP - 1, TOP]), st.integers(0, 40), st.integers(0, 5)), max_size=60),
    st.sampled_from([0, 1, 2, 5, TOP - 1, TOP]),
    st.integers(0, 41),
    st.integers(0, 41),
)
@settings(max_examples=campaign.examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_records_are_found_by_any_limits(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[int, int, int]], wanted: int, first: int, last: int
) -> None:
    made = LogIndex.open(tmp_path_factory.mktemp("index"), "run", writable=True)
    try:
        made.add(record(segment_id, sequence, step) for segment_id, step, sequence in records)
        there = sorted({(step, sequence) for segment_id, step, sequence in records if segment_id == wanted})
        found = [(one.head.step, one.head.sequence) for one in made.locations(wanted, step=first, last_step=last)]
        assert found == [one for one in there if first <= one[0] <= last]
        newest = made.newest(wanted)
        assert (None if newest is None else (newest.head.step, newest.head.sequence)) == (there[-1] if there else None)
    finally:
        made.close()


@pytest.mark.parametrize("nbytes", [0, 1, (1 << 16) - 1, 1 << 16, 1 << 20])
def test_long_descriptions_stay_in_the_segment(index: LogIndex, nbytes: int) -> None:
    index.add([record(1, 1, 1, bytes(nbytes))])
    (found,) = index.locations(1)
    assert found.description == (bytes(nbytes) if 0 < nbytes < 1 << 16 else None)
    assert found.head.description_bytes == nbytes


def test_two_opens_in_one_process_are_one_environment(tmp_path: Path) -> None:
    writer = LogIndex.open(tmp_path, "run", writable=True)
    reader = LogIndex.open(tmp_path, "run")
    assert reader is writer
    filled(writer, 1, range(1, 4))
    assert len(sequences(reader, 1)) == 6
    writer.close()
    assert len(sequences(reader, 1)) == 6
    reader.close()
    again = LogIndex.open(tmp_path, "run")
    assert not again.writable
    assert len(sequences(again, 1)) == 6
    again.close()


def test_a_reader_of_the_process_goes_on_beside_a_writer(tmp_path: Path) -> None:
    """Also one that an interrupt left open: it must not keep the log from being written."""
    index = LogIndex.open(tmp_path, "run", writable=True)
    filled(index, 1, range(1, 4))
    index.close()
    reader = LogIndex.open(tmp_path, "run")
    assert not reader.writable
    writer = LogIndex.open(tmp_path, "run", writable=True)
    assert writer is reader
    assert writer.writable
    filled(writer, 1, range(4, 6))
    assert sequences(reader, 1) == list(range(2, 12))
    writer.close()
    assert sequences(reader, 1) == list(range(2, 12))
    reader.close()


def test_a_new_file_under_the_name_of_an_open_one_is_another_index(tmp_path: Path) -> None:
    old = LogIndex.open(tmp_path, "run", writable=True)
    filled(old, 1, range(1, 4))
    delete_index(tmp_path)
    assert list(tmp_path.iterdir()) == []
    new = LogIndex.open(tmp_path, "run", writable=True)
    assert new is not old
    assert sequences(new, 1) == []
    old.close()
    filled(new, 1, range(1, 2))
    reader = LogIndex.open(tmp_path, "run")
    assert reader is new
    reader.close()
    new.close()


def test_a_missing_index_is_corrupt_for_a_reader_and_said_by_none(tmp_path: Path) -> None:
    notes: list[str] = []
    with pytest.raises(CorruptCatalog, match="the index of the log is missing"):
        LogIndex.open(tmp_path, "run")
    assert open_if_sound(tmp_path, "run", notes) is None
    assert notes == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("writable", [True, False])
def test_an_index_of_another_run_or_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writable: bool) -> None:
    LogIndex.open(tmp_path, "run", writable=True).close()
    with pytest.raises(CorruptCatalog, match="it belongs to another run"):
        LogIndex.open(tmp_path, "other", writable=writable)
    monkeypatch.setattr(index_module, "FORMAT_VERSION", FORMAT_VERSION + 1)
    with pytest.raises(CorruptCatalog, match="another version"):
        LogIndex.open(tmp_path, "run", writable=writable)
    monkeypatch.undo()
    LogIndex.open(tmp_path, "run", writable=writable).close()


def test_records_of_pruned_segments_are_forgotten_some_at_a_time(index: LogIndex) -> None:
    for segment_id in (0, 3, 5, 9, TOP):
        filled(index, segment_id, range(400))
    rounds = 1
    while not index.delete_all_but([3, 9, 1234]):
        rounds += 1
        assert len(sequences(index, 3)) == len(sequences(index, 9)) == 800
    assert rounds >= 2400 // 500
    assert [len(sequences(index, one)) for one in (0, 3, 5, 9, TOP)] == [0, 800, 0, 800, 0]
    assert index.delete_all_but([3, 9])
    while not index.delete_all_but([]):
        pass
    assert sequences(index, 3) == sequences(index, 9) == []
    reader = LogIndex.open(index.path.parent, "run")  # whose run it is of is not forgotten
    reader.close()


def test_pages_of_forgotten_records_are_used_again(index: LogIndex) -> None:
    filled(index, 1, range(2000))
    for segment_id in range(2, 12):
        filled(index, segment_id, range(2000))
        while not index.delete_all_but([segment_id]):
            pass
    assert index.path.stat().st_size < 3 * MIB + CATALOG_BYTES_RESERVED


def test_the_map_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "INDEX_BYTES", MIB // 4)
    made = LogIndex.open(tmp_path, "run", writable=True)
    reader = LogIndex.open(tmp_path, "run")
    for step in range(0, 4000, 100):
        filled(made, 1, range(step, step + 100))
        assert len(sequences(reader, 1)) == 2 * (step + 100)
    assert made._map_bytes > MIB
    reader.close()
    made.close()
    again = LogIndex.open(tmp_path, "run", writable=True)  # larger than the map that it asks for at first
    filled(again, 2, range(4000))
    assert len(sequences(again, 2)) == 8000
    again.close()


def test_a_map_that_may_not_grow_any_more_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "INDEX_BYTES", MIB // 4)
    monkeypatch.setattr(index_module, "INDEX_BYTES_GROWN_MAX", MIB // 4)
    made = LogIndex.open(tmp_path, "run", writable=True)
    filled(made, 1, range(100))
    with pytest.raises(LogUnavailable, match="MDB_MAP_FULL"):
        filled(made, 2, range(10_000))
    assert len(sequences(made, 1)) == 200
    assert sequences(made, 2) == []
    while not made.delete_all_but([]):
        pass
    filled(made, 2, range(100))
    made.close()


READER = """
import sys
from pathlib import Path
from tranlogs.log import index as module
module.INDEX_BYTES = 1 << 18
index = module.LogIndex.open(Path(sys.argv[1]), "run")
print("open", flush=True)
for _ in sys.stdin:
    found = [one.head.sequence for one in index.locations(1)]
    assert found == list(range(len(found))), found
    newest = index.newest(1)
    assert newest is None or newest.head.sequence >= len(found) - 1
    print(len(found), flush=True)
"""


def test_another_process_reads_while_it_is_written_and_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "INDEX_BYTES", MIB // 4)
    made = LogIndex.open(tmp_path, "run", writable=True)
    command = [sys.executable, "-c", READER, str(tmp_path)]
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert reader.stdin is not None
    assert reader.stdout is not None
    assert reader.stdout.readline() == "open\n"
    for step in range(0, 3000, 100):
        filled(made, 1, range(step, step + 100))
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == f"{2 * (step + 100)}\n"
    reader.stdin.close()
    assert reader.wait() == 0
    reader.stdout.close()
    made.close()


@pytest.mark.disks
@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_records_of_a_while_have_space_reserved(memory_path: Path, kind: str) -> None:
    """So that a log that goes on in recycled segments, on a full disk, is not stopped by its index."""
    with disk_of(memory_path, kind) as point:
        made = LogIndex.open(point, "run", writable=True)
        filled(made, 1, range(10_000))
        disks.fill(point)
        for step in range(10_000, 11_000):
            filled(made, 1, range(step, step + 1))
        assert len(sequences(made, 1)) == 22_000
        made.close()


@contextmanager
def disk_of(folder: Path, kind: str) -> Iterator[Path]:
    point = folder / "disk"
    with (
        disks.memory_disk(point, 16 * MIB)
        if kind == "tmpfs"
        else disks.mounted(disks.make_ext4(folder / "disk.img", 32 * MIB), point)
    ):
        yield point


@pytest.mark.disks
@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_full_disk_at_its_commit_is_an_error_and_it_goes_on_when_there_is_space(memory_path: Path, kind: str) -> None:
    with disk_of(memory_path, kind) as point:
        made = LogIndex.open(point, "run", writable=True)
        filled(made, 1, range(100))
        ballast = disks.fill(point)
        with pytest.raises(LogUnavailable, match=INDEX_NAME):
            fill_up(made, 1, 100)
        found = sequences(made, 1)
        assert found == list(range(len(found)))
        assert len(found) >= 200
        ballast.unlink()
        steps = range(len(found) // 2, len(found) // 2 + 3000)
        filled(made, 1, steps)
        made.close()
        again = LogIndex.open(point, "run")
        assert sequences(again, 1) == list(range(2 * steps.stop))
        again.close()
