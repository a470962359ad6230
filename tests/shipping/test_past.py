"""Whose store it is: of what is there, a journal counts its own past; of several folders and machines one ships, and others are
refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.shipping.ships import archiver, assert_comes_back, drain, marks, ship, store_row, toy, trained, trained_otherwise
from tests.support.faulty_store import FaultyStore
from tranlogs.base.errors import RunInUse
from tranlogs.journal.owner_lock import OwnerLock
from tranlogs.retention.keep_policy import KeepAll
from tranlogs.shipping import pull, read_newest
from tranlogs.shipping.manifest import manifest_names, parse_manifest_name


def problem(run: Path, store: FaultyStore) -> str:
    """What whoever would ship the run now says."""
    with closing(archiver(run, store)) as made:
        return made.run_once().problem


def assert_comes_back_as(store: FaultyStore, folder: Path, step: int, state: bytes) -> None:
    found = pull(store, "a/rank0", folder / "rank0")
    assert (found.step, found.steps_lost) == (step, 0)
    again = toy(folder)
    assert again.state.everything() == state
    again.journal.close()


def lose_catalog(run: Path) -> None:
    for path in (run / "rank0").glob("catalog.lmdb*"):
        path.unlink()
    toy(run).journal.close()  # rebuilds it


@pytest.mark.parametrize("knows", [True, False], ids=["its catalog", "the log alone"])
def test_a_folder_restored_from_a_backup_takes_of_the_store_what_it_shares_with_it(
    memory_path: Path, caplog: pytest.LogCaptureFixture, knows: bool
) -> None:
    run, backup, store = memory_path / "a", memory_path / "backup", FaultyStore()
    trained(run, 12)
    ship(run, store, keep=KeepAll())
    shared = {name for name in store.objects if "/objects/" in name}
    shutil.copytree(run, backup)
    trained(run, 25)
    assert ship(run, store, keep=KeepAll()).archived == 25
    shutil.rmtree(run)
    shutil.copytree(backup, run)
    if not knows:
        lose_catalog(run)
    there = dict(store.objects)
    for _ in range(2):
        assert "another history of this run, up to step 25, and this folder ends at step 12" in problem(run, store)
    assert store.objects == there, "of what leads further nothing is taken away unasked"
    with closing(archiver(run, store, keep=KeepAll(), takes_over=True)) as made:
        assert drain(made).archived == 12, "what lies behind its end is another past"
        assert (marks(run).committed, marks(run).archived, marks(run).persisted) == (12, 12, 12)
        assert "up to step 25, is superseded" in caplog.text
        assert shared <= set(store.objects), "it is not sent again"
        state = trained_otherwise(run, 22)
        assert drain(made).archived == 22
    assert_comes_back_as(store, memory_path / "b", 22, state)


def test_a_folder_restored_from_a_backup_goes_on_when_it_has_overtaken_what_lies_there(memory_path: Path) -> None:
    run, backup, store = memory_path / "a", memory_path / "backup", FaultyStore()
    trained(run, 12)
    ship(run, store)
    shutil.copytree(run, backup)
    trained(run, 25)
    ship(run, store)
    shutil.rmtree(run)
    shutil.copytree(backup, run)
    trained_otherwise(run, 18)
    with closing(archiver(run, store)) as made:
        assert made.run_once().is_refused
        assert (marks(run).committed, marks(run).archived, marks(run).persisted) == (18, 12, 12)
        state = trained_otherwise(run, 26)
        while made.run_once().archived < 26:
            made.wait()
    assert_comes_back_as(store, memory_path / "b", 26, state)


def test_a_checkpoint_and_a_segment_of_the_same_names_from_another_past_are_sent_again(memory_path: Path) -> None:
    """As where the folder was restored, and trained on, before anybody shipped it again."""
    run, backup, store = memory_path / "a", memory_path / "backup", FaultyStore()
    trained(run, 12)
    shutil.copytree(run, backup)
    trained(run, 22)
    ship(run, store)
    before, _ = read_newest(store, "a/rank0")
    shutil.rmtree(run)
    shutil.copytree(backup, run)
    state = trained_otherwise(run, 22)
    assert ship(run, store).archived == 22
    after, _ = read_newest(store, "a/rank0")
    assert before is not None
    assert after is not None
    same = [name for name in before.shipped.keys() & after.shipped.keys() if "step-0000000020" in name]
    assert same, "both have it"
    assert all(before.shipped[name].row != after.shipped[name].row for name in same)
    assert_comes_back_as(store, memory_path / "b", 22, state)


def another_run(folder: Path, store: FaultyStore) -> None:
    shutil.rmtree(folder / "a")
    trained(folder / "a", 7)


def another_machine(folder: Path, store: FaultyStore) -> None:
    pull(store, "a/rank0", folder / "new/a/rank0")
    trained(folder / "new/a", 18)
    assert ship(folder / "new/a", store).archived == 18
    trained(folder / "a", 14)


def emptied(folder: Path, store: FaultyStore) -> None:
    """As a disk that is not mounted."""
    store.objects.clear()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (another_run, "found another run ("),
        (another_machine, "has shipped to this address since"),
        (emptied, "of this run, found nothing"),
    ],
)
def test_a_store_that_is_not_this_journals_any_more_is_left_alone(
    memory_path: Path, change: Callable[[Path, FaultyStore], None], said: str
) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 12)
    ship(run, store)
    change(memory_path, store)
    before = dict(store.objects)
    with closing(archiver(run, store)) as made:
        assert said in made.run_once().problem
        assert made.progress().is_refused
    assert store.objects == before
    if change is another_machine:
        assert marks(run).archived == 12
        assert_comes_back(store, "a/rank0", memory_path / "third", 18)
    if change is not another_run:
        assert ship(run, store, takes_over=True).archived == marks(run).committed


def test_a_machine_that_is_overtaken_while_it_ships_stops(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 12)
    with closing(archiver(run, store)) as made:
        drain(made)
        another_machine(memory_path, store)
        for _ in range(100):
            if "was shipped to this address" in made.run_once().problem:
                break
            made.wait(0.02)
        assert made.progress().is_refused
        assert made.progress().archived == 12, "of what it holds nothing newer has come to the store"


def test_one_process_ships_a_journal(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 5)
    lock = OwnerLock(run / "rank0", "shipper")
    with closing(archiver(run, store)) as made:
        assert "ships" in made.run_once().problem
        with pytest.raises(RunInUse):
            OwnerLock(run / "rank0", "shipper")
        lock.release()
        assert drain(made).archived == 5


def test_a_machine_that_cannot_read_a_newer_ones_manifest_yet_stays_behind(memory_path: Path) -> None:
    old, new, store = memory_path / "a", memory_path / "new/a", FaultyStore()
    trained(old, 12)
    ship(old, store)
    pull(store, "a/rank0", new / "rank0")
    trained(new, 14)
    with closing(archiver(new, store)) as new_one:
        while new_one.run_once().archived < 14:
            new_one.wait()
        before, trunk = store_row(old), {name: store.objects[name] for name in manifest_names(store, "a/rank0")}
        assert before is not None
        theirs = {name for name in trunk if parse_manifest_name(name)[1] != before.writer}
        assert trunk.keys() > theirs > set()
        store.objects |= {name: trunk[name][:-1] for name in theirs}  # it is being written
        trained(old, 18)
        for _ in range(2):
            assert "cannot be read (yet)" in problem(old, store)
        store.objects |= trunk
        assert "has shipped to this address since" in problem(old, store)
        trained(new, 16)
        assert drain(new_one).archived == 16, "it was never ousted"
