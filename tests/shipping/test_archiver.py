"""Shipping a journal: in order, once, only what is sound, and never believed without looking."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.shipping.ships import archiver, drain, marks, ship, store_row, toy, trained
from tests.support.clock import FakeClock
from tests.support.faulty_store import FaultyStore
from tests.support.toy import uninterrupted
from tranlogs.base import config
from tranlogs.base.errors import RunInUse
from tranlogs.catalog import Catalog, CheckpointRow, ShippedRow
from tranlogs.journal.ownership.writer_lock import OwnerLock
from tranlogs.retention.keep_policy import KeepAll, KeepLatest
from tranlogs.shipping import pull, read_newest
from tranlogs.shipping.inventory import durability
from tranlogs.shipping.inventory.garbage_collection import GarbageCollector
from tranlogs.shipping.items import item_files
from tranlogs.shipping.manifest import manifest_names, parse_manifest_name
from tranlogs.shipping.sending import failures, upload
from tranlogs.stores import LocalStore


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "RETRY_SECONDS_MIN", 0.01)
    monkeypatch.setattr(failures, "RETRY_SECONDS_MAX", 0.05)


def assert_comes_back(store: object, place: str, folder: Path, step: int) -> None:
    """A machine that has nothing but the store comes to `step`, bit for bit, and trains on."""
    found = pull(store, place, folder / "rank0")  # type: ignore[arg-type]
    assert (found.step, found.steps_lost) == (step, 0)
    trainer = toy(folder)
    assert trainer.journal.step == step
    trainer.train(step + 4)
    assert trainer.state.everything() == uninterrupted(step + 4).everything()
    trainer.journal.close()


def test_a_run_is_shipped_whole_and_comes_back(memory_path: Path) -> None:
    run, store = memory_path / "a", LocalStore(memory_path / "store")
    trained(run, 27)
    found = ship(run, store)
    assert (found.archived, found.persisted, found.problem) == (27, 27, "")
    assert (marks(run).archived, marks(run).persisted) == (27, 27)
    assert_comes_back(store, "a/rank0", memory_path / "b", 27)


def test_nothing_is_sent_twice(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    ship(run, store)
    before = set(store.objects)
    assert ship(run, store).archived == 15
    assert set(store.objects) == before
    trained(run, 22)
    assert ship(run, store).archived == 22
    gone = {name for name in before - set(store.objects) if "/manifests/" not in name}
    assert gone, "the store keeps two checkpoints, and the log behind the older one"
    assert all("checkpoints/step-0000000000" in name or "/log/" in name for name in gone)


def test_a_store_that_keeps_everything(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    for until in (12, 25, 38):
        trained(run, until)
        ship(run, store, keep=KeepAll())
    manifest, _ = read_newest(store, "a/rank0")
    assert manifest is not None
    assert {one.row.step for one in manifest.checkpoints} == {0, 10, 20, 30}  # type: ignore[union-attr]


def test_the_store_keeps_the_checkpoints_that_it_is_told_to(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    for until in (12, 25, 38):
        trained(run, until)
        ship(run, store, keep=KeepLatest(1))
    manifest, _ = read_newest(store, "a/rank0")
    assert manifest is not None
    assert {one.row.step for one in manifest.checkpoints} == {30}  # type: ignore[union-attr]
    assert_comes_back(store, "a/rank0", memory_path / "b", 38)
    named = {name for one in manifest.shipped.values() for name in one.names()}
    assert {name for name in store.objects if "/objects/" in name} == named, "nothing is left over"


def test_a_live_run_is_followed_and_its_segments_are_sealed_by_age(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trainer = toy(run, segment_bytes=64 * config.MIB)
    made = archiver(run, store, lag_seconds_max=0.05)
    try:
        trainer.train(8)
        for _ in range(400):
            if made.run_once().archived == 8:
                break
            made.wait(0.05)
        assert made.progress().archived == 8, "nothing but its age seals the only segment of a trainer that does nothing"
        trainer.train(12)
        trainer.journal.close()
        assert drain(made).archived == 12
    finally:
        made.close()
    assert_comes_back(store, "a/rank0", memory_path / "b", 12)


def test_large_files_are_sent_in_parts(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_files, "PART_BYTES_MAX", 100_000)
    run, store = memory_path / "a", FaultyStore()
    trained(run, 13)
    assert ship(run, store).archived == 13
    assert max(len(data) for name, data in store.objects.items() if "/objects/" in name) == 100_000
    assert_comes_back(store, "a/rank0", memory_path / "b", 13)


# Stores that fail.


@pytest.mark.parametrize("method", ["put", "stat", "names", "get", "delete"])
def test_a_store_that_fails_now_and_then_holds_up_nothing_for_good(memory_path: Path, method: str) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    ship(run, store)
    trained(run, 27)
    chance = random.Random(7)
    store.fails = lambda called, name: called == method and chance.random() < 0.5
    assert ship(run, store).archived == 27
    store.fails = lambda called, name: False
    assert_comes_back(store, "a/rank0", memory_path / "b", 27)


def test_memory_that_is_used_up_while_a_part_is_sent_loses_no_part(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    chance = iter(range(10**6))

    def spoil(name: str, data: bytes) -> bytes:
        if next(chance) % 3 == 0:
            raise MemoryError
        return data

    store.spoils = spoil
    assert ship(run, store).archived == 15
    assert_comes_back(store, "a/rank0", memory_path / "b", 15)


def test_a_store_that_is_away_is_said_once_and_waited_for(memory_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 5)
    store.fails = lambda called, name: True
    made = archiver(run, store)
    try:
        for _ in range(10):
            made.run_once()
            made.wait(0.02)
        assert "names" in made.progress().problem
        row = store_row(run)
        assert row is not None
        assert "failed" in row.problem
        assert len([one for one in caplog.records if "cannot ship now" in one.message]) == 1
        store.fails = lambda called, name: False
        assert drain(made).archived == 5
        row = store_row(run)
        assert row is not None
        assert row.problem == ""
    finally:
        made.close()


@pytest.mark.parametrize(
    "spoiled", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b""], ids=["short", "long", "empty"]
)
def test_a_store_that_keeps_another_length_is_not_believed(memory_path: Path, spoiled) -> None:  # type: ignore[no-untyped-def]
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    chance = iter(range(10**6))
    store.spoils = lambda name, data: spoiled(data) if next(chance) % 3 == 0 and data else data
    assert ship(run, store).archived == 15
    store.spoils = lambda name, data: data
    assert_comes_back(store, "a/rank0", memory_path / "b", 15)


def test_a_store_that_forgets_what_it_took_is_sent_it_again(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    ship(run, store)
    victim = next(name for name in sorted(store.objects) if "/log/" in name)
    del store.objects[victim]
    assert ship(run, store).archived == 15
    assert_comes_back(store, "a/rank0", memory_path / "b", 15)


def test_what_is_lost_before_it_was_durable_is_sent_again(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    store.is_durable = False
    found = ship(run, store)
    assert (found.archived, found.persisted) == (15, 0)
    store.lost = {name for name in store.objects if "/log/" in name}
    store.fails = lambda called, name: called == "put"  # nor does it take anything now
    made = archiver(run, store)
    try:
        made.run_once()
        assert marks(run).archived < 15, "what is lost does not count"
        store.fails = lambda called, name: False
        store.is_durable = True
        found = drain(made)
    finally:
        made.close()
    assert (found.archived, found.persisted) == (15, 15)
    assert_comes_back(store, "a/rank0", memory_path / "b", 15)


def test_what_is_lost_and_comes_back_counts_again(memory_path: Path) -> None:
    """Also where it is not here any more: a machine that was away brings it."""
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    store.is_durable = False
    ship(run, store)
    store.lost = {name for name in store.objects if "/log/" in name}
    for path in (run / "rank0/log").glob("*.seg"):
        path.unlink()
    before = set(store.lost)
    made = archiver(run, store)
    try:
        assert drain(made).archived < 15
    finally:
        made.close()
    manifest, _ = read_newest(store, "a/rank0")
    assert manifest is not None
    assert all(one.objects.is_lost for one in manifest.segments)
    made = archiver(run, store)  # another process
    try:
        assert drain(made).archived < 15
        store.back = before
        assert drain(made).archived == 15
        assert {name for method, name in store.calls if method == "request_durability"} == before
        assert before <= set(store.objects)
        store.is_durable = True
        assert drain(made).persisted == 15
    finally:
        made.close()
    assert_comes_back(store, "a/rank0", memory_path / "b", 15)


def test_what_is_lost_is_given_up_with_what_lies_behind_it(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    store.is_durable = False
    ship(run, store)
    store.lost = {name for name in store.objects if "/log/" in name or "step-0000000000" in name}
    for path in (run / "rank0/log").glob("*.seg"):
        path.unlink()
    shutil.rmtree(next((run / "rank0/checkpoints").glob("step-0000000000-*")))
    made = archiver(run, store)
    try:
        assert drain(made).archived == 10
        store.is_durable = True
        trained(run, 32, every=10)
        assert drain(made).persisted == 32
    finally:
        made.close()
    assert not store.lost & set(store.objects)


def test_a_request_to_persist_that_was_dropped_is_made_again(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 5)
    store.is_durable = False
    made = archiver(run, store, persist_seconds=0.0)
    try:
        for _ in range(100):
            made.run_once()
            made.wait(0.01)
            if hastened := {name for method, name in store.calls if method == "request_durability"}:
                break
        assert hastened <= set(store.objects)
        store.is_durable = True
        assert drain(made).persisted == 5
    finally:
        made.close()
    assert_comes_back(store, "a/rank0", memory_path / "b", 5)


def test_what_the_store_will_not_make_durable_by_itself_is_asked_for_at_once(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 5)
    store.is_durable = False
    ship(run, store)
    store.is_durable, store.forgotten = True, {name for name in store.objects if "/log/" in name}
    assert ship(run, store, persist_seconds=1e9).persisted == 5
    assert not store.forgotten
    assert_comes_back(store, "a/rank0", memory_path / "b", 5)


def test_copies_that_cannot_be_had_are_made_up_for(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durability, "_RESEND_SECONDS_MIN", 0.2)
    monkeypatch.setattr(durability, "_RESEND_SECONDS_MAX", 0.2)
    run, store = memory_path / "a", FaultyStore()
    store.copies_wanted, store.is_durable = 2, False
    trained(run, 5)
    made = archiver(run, store)

    def turn_until(is_so: Callable[[], bool]) -> None:
        for _ in range(400):
            made.run_once()
            if is_so():
                return
            made.wait(0.02)
        raise AssertionError("it never comes to that")

    def under_replicated() -> int:
        row = store_row(run)
        return 0 if row is None else row.under_replicated

    def logs() -> set[str]:
        return {name for name in store.objects if "/log/" in name}

    try:
        turn_until(lambda: made.progress().archived == 5 and under_replicated() > 0)
        for _ in range(3):  # it is tried again and again
            before = logs()
            turn_until(lambda before=before: bool(logs()) and not logs() & before)  # type: ignore[misc]
        assert under_replicated() > 0
        store.copies = 2
        turn_until(lambda: under_replicated() == 0)
    finally:
        made.close()


def test_a_store_that_hangs_holds_nobody(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 5)
    store.hangs.clear()
    made = archiver(run, store, stall_seconds=0.05)
    try:
        found = made.run_once()
        assert "nothing moved for 0.05 s" in found.problem
        for _ in range(20):
            made.run_once()
            made.wait(0.02)
        assert "hang" in made.progress().problem or "nothing moved" in made.progress().problem
        assert sum(thread.name == "tranlogs-store" for thread in threading.enumerate()) <= 8
        store.hangs.set()
        assert drain(made).archived == 5
    finally:
        store.hangs.set()
        made.close()


# What is durable.


def forget_manifests(store: FaultyStore) -> None:
    """From now on nothing makes a manifest durable."""

    def spoil(name: str, data: bytes) -> bytes:
        if "/manifests/" in name:
            store.forgotten.add(name)
        return data

    store.spoils = spoil


def test_what_the_durable_manifest_names_stays_until_a_newer_one_is_durable(memory_path: Path) -> None:
    """Should the store lose its memory, that is what is left."""
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    assert ship(run, store, keep=KeepLatest(1)).persisted == 15
    durable, _ = read_newest(store, "a/rank0")
    assert durable is not None
    forget_manifests(store)
    for until in (27, 38):  # of two processes
        trained(run, until)
        found = ship(run, store, keep=KeepLatest(1), persist_seconds=1e9)
        assert (found.archived, found.persisted) == (until, 15)
    assert {name for one in durable.shipped.values() for name in one.names()} <= set(store.objects)
    left, everything = FaultyStore(), dict(store.objects)
    left.objects = {name: data for name, data in everything.items() if name not in store.forgotten}
    assert_comes_back(left, "a/rank0", memory_path / "b", 15)

    made = archiver(run, store, keep=KeepLatest(1), persist_seconds=1e9)
    try:
        assert drain(made).persisted == 15
        store.forgotten.clear()
        assert drain(made).persisted == 38
    finally:
        made.close()
    manifest, _ = read_newest(store, "a/rank0")
    assert manifest is not None
    named = {name for one in manifest.shipped.values() for name in one.names()}
    assert {name for name in store.objects if "/objects/" in name} == named, "nothing is left over"


def test_without_a_durable_manifest_nothing_is_persisted(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    made = archiver(run, store, persist_seconds=1e9)
    try:
        assert drain(made).persisted == 15
        forget_manifests(store)
        for name in manifest_names(store, "a/rank0"):
            del store.objects[name]
        trained(run, 27)
        found = drain(made)
    finally:
        made.close()
    assert (found.archived, found.persisted, marks(run).persisted) == (27, 0, 0)


# What is not shipped.


def damaged_segment(run: Path) -> Path:
    """The oldest segment, with a page in its middle overwritten."""
    catalog = Catalog.open(run / "rank0")
    row = catalog.segments()[0]
    catalog.close()
    path = run / "rank0/log" / row.file
    with path.open("r+b") as file:
        file.seek(row.used_bytes // 2 // 4096 * 4096)
        file.write(b"\xff" * 4096)
    return path


def test_what_is_damaged_here_is_never_sent(memory_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 8, every=100)
    segment = damaged_segment(run)
    found = ship(run, store)
    assert found.archived == 0
    assert f"cannot ship {segment.name} now" in caplog.text
    assert not any(segment.name in name for name in store.objects)


def test_what_is_pruned_before_it_could_be_sent_is_no_warning(
    memory_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15, every=5, retention=KeepAll())
    opened = item_files.open_checkpoint

    def open_late(folder: Path, row: CheckpointRow) -> item_files.Source:
        if row.step == 5:
            catalog = Catalog.open(run / "rank0", writable=True)
            with catalog.transaction() as tables:
                tables.put(f"checkpoint/{row.name}", replace(row, state="retired"))
            catalog.close()
            shutil.rmtree(folder / row.name)
        return opened(folder, row)

    monkeypatch.setattr(upload, "open_checkpoint", open_late)
    with caplog.at_level("INFO"):
        assert ship(run, store, keep=KeepAll()).archived == 15
    [record] = [record for record in caplog.records if "was pruned before it was shipped" in record.message]
    assert record.levelname == "INFO"
    assert "step-0000000005" in record.message


def test_a_newer_checkpoint_leads_past_a_damaged_segment(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 8, every=100)
    damaged_segment(run)
    assert ship(run, store).archived == 0
    trained(run, 12, every=4)
    assert ship(run, store).archived == 12
    assert_comes_back(store, "a/rank0", memory_path / "b", 12)


def test_a_segment_is_not_reused_while_it_is_sent(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trainer = toy(run)
    trainer.train(9)
    made = archiver(run, store)
    try:
        store.hangs.clear()
        held = threading.Thread(target=made.run_once)
        held.start()
        store.hangs.set()
        held.join()
        trainer.train(40)  # recycles what two newer checkpoints cover
        trainer.journal.close()
        assert drain(made).archived == 40
    finally:
        made.close()
    assert_comes_back(store, "a/rank0", memory_path / "b", 40)


# Who ships.


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


def test_a_store_that_forgets_its_manifests_is_looked_through_at_once(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 12)
    made = archiver(run, store)
    try:
        drain(made)
        store.objects.clear()
        trained(run, 25)
        assert drain(made).archived == 25
    finally:
        made.close()
    assert_comes_back(store, "a/rank0", memory_path / "b", 25)


def test_a_manifest_that_is_lost_is_written_again(memory_path: Path) -> None:
    """Nothing else has changed, and nothing else would write one."""
    trained(memory_path / "a", 12)
    store = FaultyStore()
    store.is_durable = False
    made = archiver(memory_path / "a", store)
    try:
        drain(made)
        [newest, *_] = manifest_names(store, "a/rank0")
        for name in manifest_names(store, "a/rank0"):
            store.lost.add(name)
        drain(made)
        [written, *_] = manifest_names(store, "a/rank0")
        assert parse_manifest_name(written)[0] > parse_manifest_name(newest)[0]
        store.lost.clear()
        store.is_durable = True
        assert drain(made).persisted == 12
    finally:
        made.close()
    assert_comes_back(store, "a/rank0", memory_path / "b", 12)


def test_a_catalog_that_was_rebuilt_finds_its_store_again(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    ship(run, store)
    before = {name for name in store.objects if "/objects/" in name}
    for path in (run / "rank0").glob("catalog.lmdb*"):
        path.unlink()
    trainer = toy(run)
    trainer.journal.close()
    assert ship(run, store).archived == 15
    assert {name for name in store.objects if "/objects/" in name} == before


def test_the_catalog_names_the_objects(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    ship(run, store)
    manifest, _ = read_newest(store, "a/rank0")
    assert manifest is not None
    catalog = Catalog.open(run / "rank0")
    rows = catalog.read(lambda tables: tables.rows("shipped/", ShippedRow))
    catalog.close()
    assert {row.name: row.files for row in rows} == {name: one.objects.files for name, one in manifest.shipped.items()}


def test_half_sent_objects_of_a_dead_archiver_are_deleted(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 5)
    ship(run, store)
    row = store_row(run)
    assert row is not None
    left = f"a/rank0/objects/log/x.seg.00000-{row.writer[:8]}12345678"
    foreign = "a/rank0/objects/log/x.seg.00000-ffffffff12345678"
    store.objects |= {left: b"1", foreign: b"2"}
    ship(run, store)
    assert left not in store.objects
    assert foreign in store.objects, "it may be on its way: not at once"
