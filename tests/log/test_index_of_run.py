"""The index of a run that is gone, damaged, behind its segments or ahead of them: no record is wrong, and no step is lost."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.log.test_index import filled, record
from tests.support import campaign
from tests.support.abandon import abandoned_copy
from tests.support.faults import failing
from tests.support.toy import ToyTrainer, open_toy
from tests.support.toy_steps import SIZES, state_at
from tests.support.verify import verify_run
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.base.errors import CorruptCatalog
from tranlogs.catalog.lmdb_environment import open_environment
from tranlogs.log.index import INDEX_NAME, LogIndex
from tranlogs.log.record_format import EntryKind, Location, pack_head
from tranlogs.log.scanner import scan
from tranlogs.recovery.journal_facts import read_catalog, read_facts
from tranlogs.retention import EverySteps, KeepLatest
from tranlogs.verify import Problem


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
