"""`verify` names what is damaged, missing or of another version, by file, step and tensor, and nothing else."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.abandon import abandoned_copy
from tests.support.damage import tensor_span
from tests.support.faults import failing
from tests.support.record_rows import forget_records
from tests.support.toy import ToyTrainer, open_toy
from tests.support.verify import verify_run
from tranlogs.base.config import JournalConfig
from tranlogs.base.errors import NotARun
from tranlogs.catalog import Catalog, segment_key
from tranlogs.checkpoints import Checkpoint
from tranlogs.log.reader import Record, SegmentReader
from tranlogs.log.record_format import HEAD, Location
from tranlogs.recovery.history import ScannedSegment
from tranlogs.recovery.journal_facts import read_facts
from tranlogs.retention import EverySteps, KeepLatest
from tranlogs.verify import Checked, Problem, verify_journal

SIZES = (7, 3000, 40_000)


def open_run(run: Path, **options: Any) -> ToyTrainer:
    config = JournalConfig(segment_bytes=1 << 20, **options)
    return open_toy(run, sizes=SIZES, config=config, policy=EverySteps(20), retention=KeepLatest(2))


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """A run of 66 steps with checkpoints at 40 and 60 and several segments, ended in order.

    It is made in memory: on a slow disk the checkpoint of step 40 may still be written when the next one is due.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        trainer = open_run(Path(folder, "run"))
        trainer.recover()
        trainer.train(66)
        trainer.journal.close()
        yield Path(folder, "run")


@pytest.fixture
def run(made: Path, memory_path: Path) -> Path:
    return Path(shutil.copytree(made, memory_path / "run"))


def recovered_step(run: Path) -> int:
    trainer = open_run(run)
    try:
        return trainer.recover().step
    finally:
        trainer.journal.close()


def problems_of(run: Path) -> list[Problem]:
    return [finding for finding in verify_run(run) if isinstance(finding, Problem)]


def newest_segment(run: Path) -> ScannedSegment:
    segments = read_facts(run / "rank0").segments
    return max(segments, key=lambda segment: segment.row.ordinal)


def free_bytes(segment: ScannedSegment) -> int:
    """Allocated behind the last record: `close` gives that of the last segment back."""
    return segment.path.stat().st_size - segment.locations[-1].end


def entry_of(run: Path, step: int, *, of_boundary: bool = False) -> tuple[Path, Location, Record]:
    for segment in read_facts(run / "rank0").segments:
        with SegmentReader(segment.path) as reader:
            for location in segment.locations:
                entry = reader.decode(location)
                if (entry.kind.is_boundary if of_boundary else entry.kind.is_step) and entry.step == step:
                    return segment.path, location, entry
    raise LookupError(step)


def overwrite(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def invert(path: Path, offset: int) -> None:
    overwrite(path, offset, bytes([path.read_bytes()[offset] ^ 0xFF]))


def test_sound_run_has_no_problem(run: Path) -> None:
    findings = list(verify_run(run))
    assert not [finding for finding in findings if isinstance(finding, Problem)]
    checked = [finding for finding in findings if isinstance(finding, Checked)]
    links = [location for segment in read_facts(run / "rank0").segments for location in segment.locations[1:]]
    assert sum(finding.records for finding in checked) == len(links)
    states = [path.stat().st_size for path in (run / "rank0" / "checkpoints").glob("*/*") if path.suffix != ".json"]
    assert sum(finding.nbytes for finding in checked if "checkpoints" in finding.path.parts) == sum(states)


def test_verify_changes_nothing(run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and not path.name.endswith("-lock")}
    list(verify_run(run))
    assert {path: path.read_bytes() for path in before} == before


def test_only_the_newest_segment_of_a_killed_process_may_be_missing_in_the_catalog(run: Path) -> None:
    rows = sorted((segment.row for segment in read_facts(run / "rank0").segments), key=lambda row: row.ordinal)
    catalog = Catalog.open(run / "rank0", writable=True)
    for row in (rows[-1], rows[0]):
        with catalog.transaction() as tables:
            tables.delete(segment_key(row.ordinal))
    catalog.close()
    note = run / "rank0" / "owner.json"
    note.write_text(note.read_text().replace('"has_closed": true', '"has_closed": false'))
    told = [problem.what for problem in problems_of(run) if "does not list" in problem.what]
    assert told == [f"it does not list segment {rows[0].file}, which reaches step {rows[0].last_step}"]


def test_damage_to_a_segment_that_the_catalog_does_not_list_is_named(run: Path) -> None:
    row = newest_segment(run).row
    path, _, record = entry_of(run, 66)
    assert path.name == row.file
    with Catalog.open(run / "rank0", writable=True) as catalog, catalog.transaction() as tables:
        tables.delete(segment_key(row.ordinal))
    invert(path, tensor_span(record, "grad/w2")[0] + 1000)
    assert (path, 66, "grad/w2") in [(problem.path, problem.step, problem.tensor) for problem in problems_of(run)]


def test_damaged_tensor_is_named_with_file_step_and_name(run: Path) -> None:
    path, _, entry = entry_of(run, 61)
    invert(path, tensor_span(entry, "grad/w2")[0] + 1000)
    [problem] = problems_of(run)
    assert (problem.path, problem.step, problem.tensor) == (path, 61, "grad/w2")
    assert str(problem) == f"{path}: step 61: tensor grad/w2: the checksum of its bytes differs"


@pytest.mark.parametrize(
    ("step", "of_boundary", "where", "what"),
    [
        (61, False, "description", ["the checksum of its description differs"]),
        (62, False, "head", ["record {} is damaged or missing"]),
        (66, True, "head", ["", "it ends at step 65, but step 66 had been committed"]),
    ],
)
def test_damaged_record_is_named_with_its_step(run: Path, step: int, of_boundary: bool, where: str, what: list[str]) -> None:
    path, location, _ = entry_of(run, step, of_boundary=of_boundary)
    if where == "head":
        overwrite(path, location.offset, bytes(HEAD.size))
    else:
        invert(path, location.description_offset + 5)
    problems = problems_of(run)
    assert (problems[0].path, problems[0].step) in ((path, step), (path, None))
    for problem, words in zip(problems, what, strict=False):
        assert words.format(location.head.sequence) in problem.what


def test_damaged_first_head_hides_no_entry_though_there_are_no_rows(run: Path) -> None:
    segment = newest_segment(run)
    overwrite(segment.path, segment.locations[0].offset + 36, b"\xff\xff\xff\xff")  # the length of its description
    forget_records(run / "rank0")
    [problem] = problems_of(run)
    assert (problem.path, problem.what) == (segment.path, "its first record is damaged or missing")
    assert recovered_step(run) == 66


@pytest.mark.parametrize("part", ["param/w1", "state/w2", "header", "meta.bin", "manifest.json"])
def test_each_part_of_a_checkpoint_is_named(run: Path, part: str) -> None:
    folder = max((run / "rank0" / "checkpoints").iterdir())
    file = folder / (part if "." in part else "state.safetensors")
    at = 40
    if "/" in part:
        raw = file.read_bytes()
        start = 8 + int.from_bytes(raw[:8], "little")
        with Checkpoint(folder) as checkpoint:
            at = start + checkpoint.manifest["tensors"][part]["offset"] + 3
    invert(file, at)
    [problem] = problems_of(run)
    assert problem.path == file
    assert problem.tensor == (part if "/" in part else None)
    assert problem.step == 60


def test_abandoned_entries_are_no_problem(run: Path) -> None:
    path, location, _ = entry_of(run, 64)
    trainer = open_run(run)
    trainer.recover(step=62)
    trainer.train(63)
    trainer.journal.close()
    overwrite(path, location.offset, b"\0" * HEAD.size)
    assert not problems_of(run)


def test_run_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotARun):
        list(verify_run(tmp_path))


def test_unreadable_sector_is_named_and_the_rest_is_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _, entry = entry_of(run, 66)
    page = tensor_span(entry, "grad/w2")[0] // 4096 * 4096
    bad = range(page + 4096, page + 8192)

    def failing(read: Callable[..., Any]) -> Callable[..., Any]:
        def call(fd: int, what: Any, offset: int) -> Any:
            size = what if isinstance(what, int) else what[0].nbytes
            is_hit = offset < bad.stop and offset + size > bad.start
            if is_hit and os.readlink(f"/proc/self/fd/{fd}") == str(path):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return read(fd, what, offset)

        return call

    monkeypatch.setattr(os, "pread", failing(os.pread))
    monkeypatch.setattr(os, "preadv", failing(os.preadv))
    [problem] = problems_of(run)
    assert (problem.path, problem.step, problem.tensor) == (path, 66, "grad/w2")
    assert problem.what == "it cannot be read (Input/output error)"
    assert recovered_step(run) == 65


def test_run_that_is_being_written_has_no_problem(memory_path: Path) -> None:
    run, found, rounds = memory_path / "run", list[str](), 0
    trainer = open_run(run, durability="machine")
    trainer.recover()
    stop = threading.Event()

    def look() -> None:
        nonlocal rounds
        while not stop.is_set():
            found.extend(str(finding) for finding in verify_journal(run / "rank0") if isinstance(finding, Problem))
            rounds += 1

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        trainer.train(120)
    finally:
        stop.set()
        watcher.join()
        trainer.journal.close()
    assert rounds > 1
    assert not found


def test_a_checkpoint_that_was_never_listed_and_is_overtaken_makes_no_hole(memory_path: Path) -> None:
    """What the log has behind it was pruned: the trainer knew of newer ones alone."""

    def opened(run: Path) -> ToyTrainer:
        config = JournalConfig(segment_bytes=4 << 20)
        return open_toy(run, config=config, policy=EverySteps(1000), retention=KeepLatest(1))

    def sealed(trainer: ToyTrainer, until: int) -> None:
        trainer.train(until)
        wal = trainer.journal.log.wal
        assert wal is not None
        wal.roll()
        while not any(row.state == "sealed" and row.last_step == until for row in trainer.journal.catalog.segments()):
            with wal._lock:
                wal._lock.notify_all()
            time.sleep(0.001)

    def taken(trainer: ToyTrainer, until: int) -> None:
        trainer.train(until)
        trainer.journal.checkpoint(trainer.state.snapshot())
        trainer.journal.wait_checkpoint()

    trainer = opened(memory_path / "run")
    trainer.recover()
    sealed(trainer, 3)
    with failing("checkpoint.published=enospc"):
        taken(trainer, 3)
    sealed(trainer, 5)
    taken(trainer, 5)  # the trainer learns of the failure at a boundary where one is due: too late
    assert [row.base_step for row in trainer.journal.catalog.segments() if row.state == "retired"] == [0, 3]
    taken(trainer, 7)
    trainer.train(8)
    left = abandoned_copy(trainer.journal, memory_path / "left")
    trainer.journal.close()
    assert steps_of(left) == [3, 7]
    assert problems_of(left) == []
    again = opened(left)
    assert again.recover().step == 8
    assert [row.step for row in again.journal.catalog.checkpoints()] == [7]
    taken(again, 9)
    again.journal.close()
    assert steps_of(left) == [9]
    assert problems_of(left) == []


def steps_of(run: Path) -> list[int]:
    """Of its checkpoints on disk."""
    return sorted(int(path.name.split("-")[1]) for path in (run / "rank0/checkpoints").iterdir())
