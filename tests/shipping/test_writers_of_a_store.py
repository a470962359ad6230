"""One process of one machine ships a journal; others are told apart, and stop."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.shipping.ships import archiver, assert_comes_back, drain, marks, ship, store_row, trained
from tests.support.clock import FakeClock
from tests.support.faulty_store import FaultyStore
from tranlogs.base.errors import RunInUse
from tranlogs.journal.owner_lock import OwnerLock
from tranlogs.shipping import pull
from tranlogs.shipping.inventory import GarbageCollector
from tranlogs.shipping.manifest import manifest_names, parse_manifest_name
from tranlogs.stores.local import LocalStore


def test_one_process_ships_a_journal(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 5)
    lock = OwnerLock(run / "rank0", "shipper")
    made = archiver(run, store)
    try:
        assert "ships" in made.run_once().problem
        with pytest.raises(RunInUse):
            OwnerLock(run / "rank0", "shipper")
        lock.release()
        assert drain(made).archived == 5
    finally:
        made.close()


def test_another_run_in_the_store_is_left_alone(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 5)
    ship(run, store)
    before = dict(store.objects)
    shutil.rmtree(run)
    trained(run, 7)
    made = archiver(run, store)
    try:
        assert "found another run (" in made.run_once().problem
    finally:
        made.close()
    assert store.objects == before


def test_an_old_machine_that_comes_back_does_not_spoil_the_new_ones_store(memory_path: Path) -> None:
    old, new, store = memory_path / "old/a", memory_path / "new/a", FaultyStore()
    trained(old, 12)
    ship(old, store)
    pull(store, "a/rank0", new / "rank0")
    trained(new, 18)
    assert ship(new, store).archived == 18
    trained(old, 14)
    made = archiver(old, store)
    try:
        assert "has shipped to this address since" in made.run_once().problem
    finally:
        made.close()
    assert_comes_back(store, "a/rank0", memory_path / "third", 18)
    assert ship(old, store, takes_over=True).archived == 14


def test_a_machine_that_is_overtaken_while_it_ships_stops(memory_path: Path) -> None:
    old, new, store = memory_path / "old/a", memory_path / "new/a", FaultyStore()
    trained(old, 12)
    made = archiver(old, store)
    try:
        drain(made)
        pull(store, "a/rank0", new / "rank0")
        trained(new, 18)
        assert ship(new, store).archived == 18
        trained(old, 25)
        for _ in range(100):
            if "was shipped to this address" in made.run_once().problem:
                break
            made.wait(0.02)
        assert made.progress().is_refused
        assert made.progress().archived == 12, "of what it holds nothing newer has come to the store"
    finally:
        made.close()


def test_a_copy_of_the_folder_is_another_writer(memory_path: Path) -> None:
    """Of two copies of a run that train on, the store takes the first that ships, and refuses the other."""
    one, other, store = memory_path / "one/a", memory_path / "other/a", FaultyStore()
    trained(one, 12)
    ship(one, store)
    shutil.copytree(one, other)
    trained(one, 25)
    assert ship(one, store).archived == 25
    trained(other, 18)
    made = archiver(other, store)
    try:
        assert "has shipped to this address since" in made.run_once().problem
    finally:
        made.close()
    assert (marks(other).committed, marks(other).archived) == (18, 12)
    assert_comes_back(store, "a/rank0", memory_path / "third", 25)


def test_a_folder_that_vanished_from_under_the_store_is_not_made_anew(memory_path: Path) -> None:
    run, root = memory_path / "a", memory_path / "store"
    trained(run, 12)
    made = archiver(run, LocalStore(root))
    try:
        drain(made)
        shutil.rmtree(root)
        trained(run, 25)
        for _ in range(20):
            made.run_once()
            made.wait(0.02)
        assert "vanished" in made.progress().problem
        assert marks(run).archived <= 12
        assert not root.exists()
    finally:
        made.close()


def test_a_store_that_was_there_and_is_empty_now_is_refused(memory_path: Path) -> None:
    """As a disk that is not mounted. Nothing is to be sent to what looks like it."""
    run, store = memory_path / "a", FaultyStore()
    trained(run, 12)
    ship(run, store)
    store.objects.clear()
    made = archiver(run, store)
    try:
        assert "of this run, found nothing" in made.run_once().problem
        assert made.progress().is_refused
    finally:
        made.close()
    assert store.objects == {}
    assert marks(run).archived == 12, "nothing is known of it"
    assert ship(run, store, takes_over=True).archived == 12


def test_a_machine_that_cannot_read_a_newer_ones_manifest_yet_stays_behind(memory_path: Path) -> None:
    old, new, store = memory_path / "old/a", memory_path / "new/a", FaultyStore()
    trained(old, 12)
    ship(old, store)
    pull(store, "a/rank0", new / "rank0")
    trained(new, 14)
    new_one = archiver(new, store)
    try:
        while new_one.run_once().archived < 14:
            new_one.wait()
        before, trunk = store_row(old), {name: store.objects[name] for name in manifest_names(store, "a/rank0")}
        assert before is not None
        theirs = {name for name in trunk if parse_manifest_name(name)[1] != before.writer}
        assert trunk.keys() > theirs > set()
        store.objects |= {name: trunk[name][:-1] for name in theirs}  # it is being written
        trained(old, 18)
        for _ in range(2):
            made = archiver(old, store)
            try:
                assert "cannot be read (yet)" in made.run_once().problem
            finally:
                made.close()
        store.objects |= trunk
        made = archiver(old, store)
        try:
            assert "has shipped to this address since" in made.run_once().problem
        finally:
            made.close()
        trained(new, 16)
        assert drain(new_one).archived == 16, "it was never ousted"
    finally:
        new_one.close()


@pytest.mark.parametrize("is_read", [True, False])
def test_what_another_writer_left_is_deleted_if_its_manifests_could_be_read(is_read: bool) -> None:
    store, clock = FaultyStore(), FakeClock()
    store.objects = {"a/rank0/objects/log/x.seg.00000-ffffffff12345678": b"1"}
    collector = GarbageCollector(store, "a/rank0", clock)
    collector.keeps_all, collector.keeps_foreign = False, not is_read
    for _ in range(3):
        collector.collect({}, "0123456789abcdef")
        clock.advance(3601)
    assert bool(store.objects) is not is_read


def test_where_its_manifests_cannot_be_read_nothing_is_deleted(memory_path: Path) -> None:
    """They, and what they name, may come back."""
    run, store = memory_path / "a", FaultyStore()
    trained(run, 12)
    ship(run, store)
    before = dict(store.objects)
    for name in manifest_names(store, "a/rank0"):
        store.objects[name] = b"nothing"
    assert ship(run, store).archived == 12
    assert {name for name in before if "/objects/" in name} < set(store.objects)
