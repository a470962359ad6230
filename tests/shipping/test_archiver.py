"""Shipping a journal: in order, once, only what is sound, as much as is to be kept, and to stores that fail or lie."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.shipping.ships import (
    archiver,
    assert_comes_back,
    drain,
    marks,
    objects_named,
    open_only,
    ship,
    store_row,
    toy,
    train_calmly,
    trained,
)
from tests.support.faulty_store import FaultyStore
from tranlogs.base.clock import Clock
from tranlogs.base.config import MIB
from tranlogs.catalog import Catalog
from tranlogs.journal import JournalPaths
from tranlogs.retention.keep_policy import KeepLatest
from tranlogs.shipping import Archiver, ShippingSettings, pull, read_newest, upload
from tranlogs.shipping.manifest import manifest_names, read_local
from tranlogs.stores import Store
from tranlogs.stores.local import LocalStore


def test_a_run_is_shipped_whole_and_once_in_parts_and_comes_back(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "PART_BYTES_MAX", 100_000)
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    found = ship(run, store)
    assert (found.archived, found.persisted, found.problem) == (15, 15, "")
    assert (marks(run).archived, marks(run).persisted) == (15, 15)
    assert max(len(data) for name, data in store.objects.items() if "/objects/" in name) == 100_000
    manifest, _ = read_newest(store, "a/rank0")
    assert manifest is not None
    assert {name: one.files for name, one in read_local(run / "rank0").items()} == {
        name: one.files for name, one in manifest.shipped.items()
    }

    before = set(store.objects)
    assert ship(run, store).archived == 15
    assert set(store.objects) == before
    trained(run, 22)
    assert ship(run, store).archived == 22
    gone = {name for name in before - set(store.objects) if "/manifests/" not in name}
    assert gone, "the store keeps two checkpoints, and the log behind the older one"
    assert all("checkpoints/step-0000000000" in name or "/log/" in name for name in gone)
    assert_comes_back(store, "a/rank0", memory_path / "b", 22)


def test_a_live_run_is_followed_and_its_segments_are_sealed_by_age(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trainer = toy(run, segment_bytes=64 * MIB)
    with closing(archiver(run, store, lag_seconds_max=0.05)) as made:
        trainer.train(8)
        for _ in range(400):
            if made.run_once().archived == 8:
                break
            made.wait(0.05)
        assert made.progress().archived == 8, "nothing but its age seals the only segment of a trainer that does nothing"
        trainer.train(12)
        trainer.journal.close()
        assert drain(made).archived == 12
    assert_comes_back(store, "a/rank0", memory_path / "b", 12)


def test_what_is_damaged_here_is_never_sent_and_a_newer_checkpoint_leads_past_it(
    memory_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 8, every=100)
    catalog = Catalog.open(run / "rank0")
    row = catalog.segments()[0]
    catalog.close()
    with (run / "rank0/log" / row.file).open("r+b") as file:
        file.seek(row.used_bytes // 2 // 4096 * 4096)
        file.write(b"\xff" * 4096)
    assert ship(run, store).archived == 0
    assert f"cannot ship {row.file} now" in caplog.text
    assert not any(row.file in name for name in store.objects)
    trained(run, 12, every=4)
    assert ship(run, store).archived == 12
    assert_comes_back(store, "a/rank0", memory_path / "b", 12)


def test_half_sent_objects_of_a_dead_archiver_are_deleted_and_nothing_where_manifests_cannot_be_read(
    memory_path: Path,
) -> None:
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
    before = dict(store.objects)
    for name in manifest_names(store, "a/rank0"):
        store.objects[name] = b"nothing"  # they, and what they name, may come back
    assert ship(run, store).archived == 5
    assert {name for name in before if "/objects/" in name} < set(store.objects)


# Manifests that are durable, or not.


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
    durable = objects_named(store)
    forget_manifests(store)
    for until in (27, 38):  # of two processes
        trained(run, until)
        found = ship(run, store, keep=KeepLatest(1), persist_seconds=1e9)
        assert (found.archived, found.persisted) == (until, 15)
    assert durable <= set(store.objects)
    left, everything = FaultyStore(), dict(store.objects)
    left.objects = {name: data for name, data in everything.items() if name not in store.forgotten}
    assert_comes_back(left, "a/rank0", memory_path / "b", 15)
    with closing(archiver(run, store, keep=KeepLatest(1), persist_seconds=1e9)) as made:
        assert drain(made).persisted == 15
        store.forgotten.clear()
        assert drain(made).persisted == 38
    assert {name for name in store.objects if "/objects/" in name} == objects_named(store), "nothing is left over"


# Stores that fail, hang, forget, lose or change what they were sent: nothing is believed without looking.


def fails(store: FaultyStore) -> None:
    """A third of all calls fail."""
    chance = random.Random(7)
    store.fails = lambda called, name: chance.random() < 0.3


def spoils(store: FaultyStore) -> None:
    """Each third object is shorter, longer or empty, or the machine has no memory for it."""
    ways, number = [lambda data: data[:-1], lambda data: data + b"x", lambda data: b"", _use_up_memory], itertools.count()

    def change(name: str, data: bytes) -> bytes:
        turn, is_sound = divmod(next(number), 3)
        return data if is_sound or not data else bytes(ways[turn % len(ways)](data))

    store.spoils = change


def _use_up_memory(data: bytes) -> bytes:
    raise MemoryError


def forgets_an_object(store: FaultyStore) -> None:
    del store.objects[next(name for name in sorted(store.objects) if "/log/" in name)]


@pytest.mark.parametrize("harm", [fails, spoils, forgets_an_object])
def test_what_is_archived_comes_back_whatever_the_store_does(memory_path: Path, harm: Callable[[FaultyStore], None]) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    ship(run, store)
    trained(run, 27)
    harm(store)
    assert ship(run, store).archived == 27
    store.fails = lambda called, name: False
    assert_comes_back(store, "a/rank0", memory_path / "b", 27)


def test_a_store_that_forgets_everything_is_sent_it_again_by_the_process_that_knows_it(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 12)
    with closing(archiver(run, store)) as made:
        drain(made)
        store.objects.clear()
        trained(run, 25)
        assert drain(made).archived == 25
    assert_comes_back(store, "a/rank0", memory_path / "b", 25)


def test_a_store_that_is_away_is_said_once_and_waited_for(memory_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 5)
    store.fails = lambda called, name: True
    with closing(archiver(run, store)) as made:
        for _ in range(10):
            made.run_once()
            made.wait(0.02)
        row = store_row(run)
        assert row is not None
        assert "names" in made.progress().problem
        assert "failed" in row.problem
        assert len([one for one in caplog.records if "cannot ship now" in one.message]) == 1
        store.fails = lambda called, name: False
        assert drain(made).archived == 5
        row = store_row(run)
        assert row is not None
        assert row.problem == ""


def test_a_store_that_hangs_holds_nobody(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 5)
    store.hangs.clear()
    with closing(archiver(run, store, stall_seconds=0.05)) as made:
        try:
            assert "nothing moved for 0.05 s" in made.run_once().problem
            for _ in range(20):
                made.run_once()
                made.wait(0.02)
            assert sum(thread.name == "tranlogs-store" for thread in threading.enumerate()) <= 8
            store.hangs.set()
            assert drain(made).archived == 5
        finally:
            store.hangs.set()


def test_an_error_of_the_program_is_recorded_and_shipping_goes_on(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    is_mended, put = threading.Event(), store.put

    def wrong(*arguments: object) -> object:
        if not is_mended.is_set():
            raise TypeError("a mistake")
        return put(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "put", wrong)
    with closing(archiver(run, store)) as made:
        made.start()
        while (row := store_row(run)) is None or "error in TranLogs (TypeError: a mistake)" not in row.problem:
            made.wait(0.02)
        is_mended.set()
        while made.progress().archived < 15:
            made.wake()
            made.wait(0.02)
    assert_comes_back(store, "a/rank0", memory_path / "b", 15)


# What is lost before it is durable.


@pytest.fixture
def volatile(memory_path: Path) -> FaultyStore:
    """A store that has the run `a` up to step 15, and nothing of it for good."""
    store = FaultyStore()
    store.is_durable = False
    trained(memory_path / "a", 15)
    found = ship(memory_path / "a", store)
    assert (found.archived, found.persisted) == (15, 0)
    return store


def test_what_is_lost_does_not_count_and_is_sent_again(memory_path: Path, volatile: FaultyStore) -> None:
    run, store = memory_path / "a", volatile
    store.fails = lambda called, name: called == "put"
    store.lost = {name for name in store.objects if "/log/" in name}
    with closing(archiver(run, store)) as made:
        made.run_once()
        assert marks(run).archived < 15
        store.fails = lambda called, name: False
        store.is_durable = True
        found = drain(made)
    assert found.archived == found.persisted == 15
    assert_comes_back(store, "a/rank0", memory_path / "b", 15)


def test_a_request_to_persist_that_was_dropped_is_made_again(memory_path: Path, volatile: FaultyStore) -> None:
    with closing(archiver(memory_path / "a", volatile, persist_seconds=0.0)) as made:
        for _ in range(100):
            made.run_once()
            made.wait(0.01)
            if any(method == "request_durability" for method, _ in volatile.calls):
                break
        else:
            raise AssertionError("it was not asked for again")
        volatile.is_durable = True
        assert drain(made).persisted == 15


def test_what_the_store_will_not_make_durable_by_itself_is_asked_for_at_once(memory_path: Path, volatile: FaultyStore) -> None:
    volatile.is_durable, volatile.forgotten = True, {name for name in volatile.objects if "/log/" in name}
    assert ship(memory_path / "a", volatile, persist_seconds=1e9).persisted == 15
    assert not volatile.forgotten


# Journals of one group: none gives up what all of them need to come back together.


def trained_as_one_of(run: Path, until: int, *, rewinds_to: int | None = None) -> None:
    """Train a run that knows itself to be one journal of several; a checkpoint every ten steps."""
    trainer = open_only(run)
    trainer.recover(rewinds_to)
    trainer.journal.holds.set_common_step(0, 2)
    train_calmly(trainer, until)
    trainer.journal.close()


def kept(run: Path, store: Store, place: str) -> list[int]:
    """Ship all that can be; the steps of the checkpoints that the store has then, of which one is to be kept."""
    with closing(Archiver(JournalPaths.of(run), store, place, ShippingSettings(keep=KeepLatest(1)), Clock())) as made:
        drain(made)
    manifest, _ = read_newest(store, place)
    assert manifest is not None
    return sorted({one.row.step for one in manifest.checkpoints})  # type: ignore[union-attr]


def test_the_newest_checkpoint_that_all_journals_of_a_group_reach_stays(memory_path: Path) -> None:
    one, other, store = memory_path / "a", memory_path / "b", LocalStore(memory_path / "store")
    trained_as_one_of(one, 15)
    assert kept(one, store, "run/rank0") == [0, 10], "the other one has nothing there"
    trained_as_one_of(other, 15)
    assert kept(other, store, "run/rank1") == [10]
    trained_as_one_of(one, 35)
    assert kept(one, store, "run/rank0") == [10, 30], "the other one cannot come beyond 15"
    trained_as_one_of(other, 35)
    assert kept(other, store, "run/rank1") == [30]
    assert kept(one, store, "run/rank0") == [30]
    trained_as_one_of(one, 45, rewinds_to=30)
    assert kept(one, store, "run/rank0") == [0, 40], "the other one has nothing there on the new timeline"
    trained_as_one_of(other, 45, rewinds_to=30)
    kept(other, store, "run/rank1")
    assert kept(one, store, "run/rank0") == [40]
    assert pull(store, "run/rank0", memory_path / "c/rank0").step == 45
