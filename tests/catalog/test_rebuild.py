"""A catalog that is lost, damaged, of another run or of another time is set aside, and rebuilt from the files."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.toy import ToyState, ToyTrainer, open_toy, uninterrupted
from tests.support.verify import problems_of
from tranlogs.base.config import JournalConfig
from tranlogs.base.errors import CatalogUnavailable, CorruptCatalog, UsageError
from tranlogs.catalog import (
    CATALOG_NAME,
    Catalog,
    CommonRow,
    Incident,
    Tables,
)
from tranlogs.rebuild_catalog import rebuild_catalog
from tranlogs.recovery.journal_facts import JournalRows, read_catalog
from tranlogs.recovery.recover import recover
from tranlogs.retention import EverySteps, KeepLatest
from tranlogs.retention.prune import retire

SIZES = (7, 3000, 9000)


def open_run(run: Path) -> ToyTrainer:
    config = JournalConfig(segment_bytes=1 << 20)
    return open_toy(run, sizes=SIZES, config=config, policy=EverySteps(20), retention=KeepLatest(2))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two timelines that ended at step 66; `later`, the same run at step 140; `other`, another one at step 140."""
    folder = tmp_path_factory.mktemp("rebuild")
    for until, step in ((55, None), (66, 50)):
        trained(folder / "run", until, step)
    shutil.copytree(folder / "run", folder / "later")
    trained(folder / "later", 140)
    trained(folder / "other", 140)
    return folder


def trained(run: Path, until: int, step: int | None = None) -> None:
    trainer = open_run(run)
    trainer.recover(step)
    trainer.train(until)
    trainer.journal.close()


@pytest.fixture
def run(made: Path, memory_path: Path) -> Path:
    return Path(shutil.copytree(made / "run", memory_path / "run"))


def retired(folder: Path) -> set[str]:
    """Files that are spares: they come back as segments that nobody needs."""
    return {row.file for row in read_catalog(folder).segments if row.state == "retired"}


def listing(folder: Path, spares: set[str]) -> tuple[object, ...]:
    """What the rows say that the files say, too."""
    known = read_catalog(folder)
    segments = {
        (row.ordinal, row.file, row.timeline, row.base_sequence, row.last_sequence, row.last_step)
        for row in known.segments
        if row.state == "sealed" and row.file not in spares
    }
    checkpoints = {(row.name, row.step, row.sequence, row.chain, row.timeline, row.nbytes) for row in known.checkpoints}
    return segments, checkpoints, {(row.number, row.parent, row.fork_sequence, row.fork_step) for row in known.timelines}


def rebuilt(folder: Path) -> JournalRows:
    assert any(note.startswith("the catalog was rebuilt from") for note in rebuild_catalog(folder))
    return read_catalog(folder)


def goes_on(run: Path, step: int) -> None:
    """Recovery lands on `step`, exactly, and training goes on from there."""
    trainer = open_run(run)
    assert trainer.recover().step == step
    assert trainer.state.everything() == uninterrupted(step, sizes=SIZES).everything()
    trainer.train(step + 5)
    trainer.journal.close()
    again = open_run(run)
    assert again.recover().step == step + 5
    again.journal.close()


def test_rebuilt_catalog_says_what_the_lost_one_said(run: Path) -> None:
    spares = retired(run / "rank0")
    before = listing(run / "rank0", spares)
    os.unlink(run / "rank0" / CATALOG_NAME)
    rebuilt(run / "rank0")
    segments, *rest = listing(run / "rank0", spares)
    assert segments == set()  # nobody knows whether they are durable: open, until a writer settles them
    assert not problems_of(run)
    trainer = open_run(run)
    trainer.recover()
    trainer.journal.start()
    segments, *_ = listing(run / "rank0", spares)
    trainer.journal.close()
    assert (segments, *rest) == before
    goes_on(run, 66)


def test_rows_that_only_the_catalog_has_survive_a_rebuild(run: Path) -> None:
    catalog = Catalog.open(run / "rank0", writable=True)
    incident = Incident(1, "disk full", 3, 1.0, 5, 2.0)
    with catalog.transaction() as tables:
        tables.put("incident/000001", incident)
        tables.put("incident/000002", incident)
        tables.put("common", CommonRow(40))
    before = catalog.run(), catalog.watermarks()
    catalog.close()
    raw = (run / "rank0" / CATALOG_NAME).read_bytes()
    at = raw.index(b"disk full", raw.rindex(b"incident/000002"))  # what it says now can be read, and was never written
    (run / "rank0" / CATALOG_NAME).write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
    rebuild_catalog(run / "rank0")
    catalog = Catalog.open(run / "rank0")
    assert catalog.incidents() == [incident]
    assert catalog.read(lambda tables: tables.get("common", CommonRow)) == CommonRow(40)
    assert (catalog.run(), catalog.watermarks()) == before
    catalog.close()


@pytest.mark.parametrize("is_among_others", [False, True])
def test_nothing_is_pruned_before_the_ranks_have_told_each_other_what_all_have(run: Path, is_among_others: bool) -> None:
    if is_among_others:
        (run / "rank1").mkdir()
    (run / "rank0" / CATALOG_NAME).write_bytes(b"\0" * 5000)
    rebuild_catalog(run / "rank0")
    catalog = Catalog.open(run / "rank0", writable=True)
    before = len(catalog.checkpoints())
    retire(catalog, run / "rank0" / "checkpoints", KeepLatest(1))
    left = len(catalog.checkpoints())
    catalog.close()
    assert before > 1
    assert left == (before if is_among_others else 1)


def test_rebuild_that_died_is_done_again(run: Path) -> None:
    catalog = run / "rank0" / CATALOG_NAME
    catalog.rename(catalog.with_name(CATALOG_NAME + ".broken-1"))
    Catalog.open(run / "rank0", writable=True).close()  # made, and died before the rows were written
    with pytest.raises(CorruptCatalog, match="row is missing"):
        read_catalog(run / "rank0")
    goes_on(run, 66)


def test_timeline_of_a_checkpoint_survives_the_loss_of_all_else(run: Path) -> None:
    trainer = open_run(run)
    trainer.recover()
    trainer.train(88)
    trainer.journal.close()
    for path in (run / "rank0" / "log").iterdir():
        path.unlink()
    os.unlink(run / "rank0" / CATALOG_NAME)
    known = rebuilt(run / "rank0")
    assert [(row.number, row.parent, row.fork_step) for row in known.timelines] == [(1, 0, 0), (2, 1, 50)]
    newest = max(row.step for row in known.checkpoints)
    assert newest > 66
    goes_on(run, newest)


READERS = """
import sys, lmdb
env = lmdb.open(sys.argv[1], subdir=False, map_size=1 << 28, lib_version=0, readonly=True)
held = []
try:
    while True:
        held.append(env.begin())
except lmdb.ReadersFullError:
    print(len(held), flush=True)
sys.stdin.readline()
"""


def damaged(folder: Path, change: Callable[[bytes], bytes]) -> None:
    path = folder / CATALOG_NAME
    path.write_bytes(change(path.read_bytes()))


LOSSES: dict[str, Callable[[Path], object]] = {
    "lost": lambda folder: os.unlink(folder / CATALOG_NAME),
    "a page": lambda folder: damaged(folder, lambda raw: raw[:4096]),
    "noise": lambda folder: damaged(folder, lambda raw: random.Random(0).randbytes(len(raw))),
}


@pytest.mark.parametrize("how", LOSSES)
def test_a_lost_or_damaged_catalog_is_rebuilt_set_aside_and_said(run: Path, how: str) -> None:
    journal = run / "rank0"
    LOSSES[how](journal)
    left = (journal / CATALOG_NAME).read_bytes() if how != "lost" else b""
    found = recover(journal, ToyState(SIZES))
    assert found is not None
    assert found.position.step == 66, "whoever does not write the run reads its files"
    trainer = open_run(run)
    words = "the catalog is missing" if how == "lost" else "damaged"
    assert any(words in note for note in trainer.journal.notes), trainer.journal.notes
    trainer.journal.close()
    assert [path.read_bytes() for path in journal.glob(CATALOG_NAME + ".broken-*")] == [left] * (how != "lost")
    assert not problems_of(run)
    goes_on(run, 66)


@pytest.mark.parametrize("of", ["another run", "a later time", "an earlier time"])
def test_a_catalog_that_does_not_fit_the_files_is_rebuilt_from_them(made: Path, memory_path: Path, of: str) -> None:
    """As a folder has it that was put together from copies. What such a catalog calls retired is all that the run has."""
    step = 140 if of == "an earlier time" else 66
    run = Path(shutil.copytree(made / ("later" if of == "an earlier time" else "run"), memory_path / "run"))
    journal = run / "rank0"
    donor = {"another run": "other", "a later time": "later", "an earlier time": "run"}[of]
    shutil.copy(made / donor / "rank0" / CATALOG_NAME, journal / CATALOG_NAME)
    before = {path.name for path in (journal / "checkpoints").iterdir()}
    with pytest.raises(CorruptCatalog, match=r"it lists .*, which is missing, and does not list"):
        read_catalog(journal)
    found = recover(journal, ToyState(SIZES))
    assert found is not None
    assert found.position.step == step, "whoever does not write the run reads its files"
    for _ in range(2):
        trainer = open_run(run)
        assert trainer.recover().step == step
        trainer.journal.close()
        assert {path.name for path in (journal / "checkpoints").iterdir()} >= before
    problems = [finding.what for finding in problems_of(run)]
    assert problems == (["it ends at step 66, but step 140 had been committed"] if of == "a later time" else [])
    goes_on(run, step)


@pytest.mark.parametrize("is_lost", [False, True], ids=["catalog", "catalog lost"])
def test_a_checkpoint_of_another_run_is_named_and_not_used(made: Path, run: Path, is_lost: bool) -> None:
    """A restore that was put into the wrong folder must not become the run's newest state."""
    theirs = sorted((made / "other" / "rank0" / "checkpoints").glob("step-*"))[-1]
    shutil.copytree(theirs, run / "rank0" / "checkpoints" / theirs.name)
    if is_lost:
        (run / "rank0" / CATALOG_NAME).unlink()
    (problem,) = [found for found in problems_of(run) if found.path.name == theirs.name]
    assert problem.what.startswith("it belongs to run ")
    goes_on(run, 66)
    assert theirs.name not in {row.name for row in read_catalog(run / "rank0").checkpoints}


def test_a_sound_catalog_without_a_free_reader_is_not_rebuilt(run: Path) -> None:
    catalog = run / "rank0" / CATALOG_NAME
    before = catalog.stat().st_ino
    command = [sys.executable, "-c", READERS, str(catalog)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as readers:
        assert readers.stdout is not None
        assert int(readers.stdout.readline()) > 100
        with pytest.raises(UsageError, match=r"not damaged: .*READERS_FULL.*end some of them"):
            open_toy(run)
        with pytest.raises(CatalogUnavailable, match="not damaged"):
            read_catalog(run / "rank0")
        readers.communicate("\n")
    assert catalog.stat().st_ino == before
    assert not list((run / "rank0").glob("*.broken-*"))
    goes_on(run, 66)


def test_a_mistake_in_the_program_does_not_rebuild_a_sound_catalog(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_: Tables) -> None:
        raise TypeError("a mistake")

    with monkeypatch.context() as patch:
        patch.setattr(Tables, "check", wrong)
        with pytest.raises(TypeError, match="a mistake"):
            open_toy(run)
    assert not list((run / "rank0").glob("*.broken-*"))
    goes_on(run, 66)
