"""The log's index: whatever becomes of its file, recovery finds what the segments hold, and the next writer makes it whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import campaign, disks
from tests.support.abandon import abandoned_copy
from tests.support.faults import failing
from tests.support.toy import ToyTrainer, open_toy
from tests.support.toy_steps import SIZES, state_at
from tests.support.verify import verify_run
from tranlogs.base.config import CATALOG_BYTES_RESERVED, FORMAT_VERSION, MIB, JournalConfig
from tranlogs.base.errors import CorruptCatalog, LogUnavailable
from tranlogs.catalog.lmdb_environment import open_environment
from tranlogs.log import index as index_module
from tranlogs.log.index import INDEX_NAME, IndexedRecord, LogIndex, delete_index, open_if_sound
from tranlogs.log.record import EntryKind, Location, pack_head
from tranlogs.log.scanner import scan
from tranlogs.recovery.journal_facts import read_catalog, read_facts
from tranlogs.retention import EverySteps, KeepLatest
from tranlogs.verify import Problem

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


# In a run.


def open_run(run: Path) -> ToyTrainer:
    config = JournalConfig(durability="machine", segment_bytes=MIB)
    return open_toy(run, sizes=SIZES, config=config, policy=EverySteps(10**9), retention=KeepLatest(1))


@pytest.fixture(params=["closed", "killed"])
def run(memory_path: Path, request: pytest.FixtureRequest) -> Path:
    """A run of 30 steps in three segments."""
    trainer = open_run(memory_path / "run")
    trainer.recover()
    for until in (10, 20, 30):
        trainer.train(until)
        if until < 30:
            assert trainer.journal.log.wal is not None
            trainer.journal.log.wal.roll()
    abandoned_copy(trainer.journal, memory_path / "killed")
    trainer.journal.close()
    return memory_path / ("run" if request.param == "closed" else "killed")


def index_of(run: Path) -> Path:
    return run / "rank0" / "log" / INDEX_NAME


def indexed(run: Path) -> int:
    """Steps that the index has, over all segments."""
    known = read_catalog(run / "rank0")
    made = LogIndex.open(run / "rank0" / "log", known.run_id)
    try:
        return len({one.head.step for row in known.segments for one in made.locations(row.number)} - {0})
    finally:
        made.close()


def problems_of(run: Path) -> list[Problem]:
    return [finding for finding in verify_run(run) if isinstance(finding, Problem)]


def assert_survives(run: Path, *, step: int = 30) -> None:
    """Readers find everything, recovery lands exactly, training goes on, and the index is whole again."""
    facts = read_facts(run / "rank0")
    assert max(one.head.step for segment in facts.segments for one in segment.locations) == step
    trainer = open_run(run)
    assert trainer.recover().step == step
    assert trainer.state.everything() == state_at(step)
    trainer.train(step + 5)
    trainer.journal.close()
    assert indexed(run) == step + 5
    assert problems_of(run) == []
    trainer = open_run(run)
    assert trainer.recover().step == step + 5
    assert trainer.state.everything() == state_at(step + 5)
    trainer.journal.close()


def test_a_sound_index_has_everything_and_spares_the_scan(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert indexed(run) == 30
    written = {segment.path for segment in read_facts(run / "rank0").segments}
    scanned: list[Path] = []

    def scanning(path: Path, segment_id: int, *, start: int = 0, last_sequence: int | None = None) -> list[Location]:
        scanned.extend([path] if start == 0 else [])
        return scan(path, segment_id, start=start, last_sequence=last_sequence)

    monkeypatch.setattr("tranlogs.recovery.journal_facts.scan", scanning)
    read_facts(run / "rank0")
    assert not written & set(scanned)
    monkeypatch.undo()
    assert_survives(run)


def test_a_missing_index_costs_a_scan_and_nothing_else(run: Path) -> None:
    index_of(run).unlink()
    assert_survives(run)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 8192, 10_000])
def test_a_truncated_index_is_made_anew(run: Path, size: int) -> None:
    os.truncate(index_of(run), size)
    assert any(problem.path == index_of(run) for problem in problems_of(run))
    assert_survives(run)


@pytest.mark.parametrize("at", [0, 16, 24, 4096, 8192])
def test_a_damaged_page_of_the_index_is_survived(run: Path, at: int) -> None:
    with index_of(run).open("r+b") as file:
        file.seek(at)
        file.write(b"\xa5" * 300)
    assert_survives(run)


def test_an_index_of_another_run_is_made_anew(run: Path, memory_path: Path) -> None:
    other = open_run(memory_path / "other")
    other.recover()
    other.train(12)
    other.journal.close()
    shutil.copyfile(index_of(memory_path / "other"), index_of(run))
    assert any("belongs to another run" in str(problem) for problem in problems_of(run))
    assert_survives(run)


def changed(run: Path, change: str) -> None:
    """Change every record in the index, whose pages stay sound."""
    env = open_environment(index_of(run), True, 64 * MIB)
    with env.begin(write=True) as txn:
        for key, value in list(txn.cursor()):
            if len(key) != 24:
                continue
            raw = bytearray(value)
            if change == "offset":
                raw[0:8] = (int.from_bytes(raw[:8], "little") + 64).to_bytes(8, "little")
            elif change == "head":
                raw[8 + 20] ^= 1
            elif change == "description":
                raw[-1] ^= 1
            else:
                del raw[40:]
            txn.put(key, bytes(raw))
    env.close()


@pytest.mark.parametrize("change", ["offset", "head", "description", "short"])
def test_wrong_values_in_a_sound_environment_are_not_believed(run: Path, change: str) -> None:
    changed(run, change)
    facts = read_facts(run / "rank0")
    assert max(one.head.step for segment in facts.segments for one in segment.locations) == 30
    trainer = open_run(run)
    assert trainer.recover().step == 30
    assert trainer.state.everything() == state_at(30)
    trainer.train(35)
    trainer.journal.close()
    trainer = open_run(run)
    assert trainer.recover().step == 35
    assert trainer.state.everything() == state_at(35)
    trainer.journal.close()


@pytest.mark.parametrize("left", [0, 1, 7, 25])
def test_an_index_behind_its_segments_is_completed(run: Path, left: int) -> None:
    """A crash came between the commit of a record and that of the index: as after each kill."""
    env = lmdb.open(str(index_of(run)), subdir=False, map_size=64 * MIB, max_dbs=0)
    with env.begin(write=True) as txn:
        for key, _ in list(txn.cursor()):
            if len(key) == 24 and int.from_bytes(key[8:16], "big") > left:
                txn.delete(key)
    env.close()
    assert indexed(run) == left
    assert problems_of(run) == []
    assert_survives(run)


def test_an_index_ahead_of_its_segments_brings_back_no_step_that_they_lost(memory_path: Path) -> None:
    """A disk that lied about a flush: the index was committed, the segment's bytes are gone."""
    trainer = open_run(memory_path / "run")
    trainer.recover()
    trainer.train(20)
    assert trainer.journal.wait_synced()
    assert trainer.journal.log.wal is not None
    segment = trainer.journal.log.wal._segment
    assert segment is not None
    left = abandoned_copy(trainer.journal, memory_path / "left")
    trainer.journal.close()
    path = left / "rank0" / "log" / segment.path.name
    lost = next(one for one in scan(path, segment.segment_id) if (one.head.kind, one.head.step) == (EntryKind.STEP, 15))
    raw = bytearray(path.read_bytes())
    raw[lost.offset :] = bytes(len(raw) - lost.offset)
    path.write_bytes(raw)
    problem, *others = problems_of(left)
    assert all(other.what.startswith("it ends at step 14, but step ") for other in others)  # where a watermark came later
    assert (problem.path, problem.step) == (path, 15)
    assert f"record {lost.head.sequence} and later ones are in the index, but not in the file" in problem.what
    trainer = open_run(left)
    report = trainer.recover()
    assert report.step == 14
    assert trainer.state.everything() == state_at(14)
    assert any("step 15" in note for note in report.notes)
    trainer.train(25)
    trainer.journal.close()
    trainer = open_run(left)
    assert trainer.recover().step == 25
    assert trainer.state.everything() == state_at(25)
    trainer.journal.close()


@pytest.mark.parametrize("count", [1, 4])
def test_a_commit_that_fails_stops_logging_once_and_it_comes_back(memory_path: Path, count: int) -> None:
    """The records that it had are in their segments: nothing is lost, and the index has them in the end."""
    run = memory_path / "run"
    trainer = open_run(run)
    trainer.recover()
    trainer.train(10)
    assert trainer.journal.wait_synced()
    with failing("log.index=enospc"):
        trainer.train(11)
        trainer.journal.wait_synced()
        left = abandoned_copy(trainer.journal, memory_path / "left")
        trainer.train(11 + count)
    assert trainer.state.everything() == state_at(11 + count)
    trainer.train(40)
    trainer.journal.close()
    assert problems_of(run) == []
    assert_survives(left, step=11)


def test_pruned_segments_leave_the_index(memory_path: Path) -> None:
    run = memory_path / "run"
    trainer = open_run(run)
    trainer.recover()
    for until in (10, 20, 30):
        trainer.train(until)
        trainer.journal.checkpoint(trainer.state.snapshot(), wait=True)
        assert trainer.journal.log.wal is not None
        trainer.journal.log.wal.roll()
    trainer.train(40)
    trainer.journal.close()
    kept = {row.number for row in read_catalog(run / "rank0").segments if row.state != "retired"}
    with lmdb.open(str(index_of(run)), subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
        segments = {int.from_bytes(key[:8], "big") for key, _ in txn.cursor() if len(key) == 24}
    assert segments <= kept


@given(st.data())
@settings(max_examples=campaign.examples(40), deadline=None)
def test_random_damage_of_the_index_gives_no_wrong_record(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    made = LogIndex.open(folder, "run", writable=True)
    filled(made, 1, range(200))
    made.close()
    path = folder / INDEX_NAME
    raw = bytearray(path.read_bytes())
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    for _ in range(data.draw(st.integers(1, 5))):
        at, length = int(rng.integers(0, len(raw))), int(rng.choice([1, 8, 200]))
        raw[at : at + length] = rng.bytes(min(length, len(raw) - at))
    path.write_bytes(raw)
    sound = {record(1, sequence, sequence // 2).head for sequence in range(400)}
    try:
        found = LogIndex.open(folder, "run")
    except CorruptCatalog:
        return
    try:
        heads = [one.head for one in found.locations(1)]
        assert all(pack_head(1, head.sequence, head.step, head.kind, 100, b"description", 0) in sound for head in heads)
    except CorruptCatalog:
        pass
    finally:
        found.close()
