"""What a durable manifest names stays until a newer one is durable; a manifest that is lost is written again."""

from __future__ import annotations

from pathlib import Path

from tests.shipping.ships import archiver, assert_comes_back, drain, marks, ship, toy, trained
from tests.support.faulty_store import FaultyStore
from tranlogs.retention.keep_policy import KeepLatest
from tranlogs.shipping import read_newest
from tranlogs.shipping.manifest import manifest_names, parse_manifest_name


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
