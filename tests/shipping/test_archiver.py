"""Shipping a journal to a store that works: in order, once, only what is sound, and as much as is to be kept."""

from __future__ import annotations

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
from tranlogs.retention.keep_policy import KeepAll, KeepLatest, RetentionPolicy
from tranlogs.shipping import Archiver, ShippingSettings, pull, read_newest, upload
from tranlogs.shipping.manifest import manifest_names, parse_manifest_name, read_local
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


@pytest.mark.parametrize(("keep", "steps"), [(KeepAll(), {0, 10, 20, 30}), (KeepLatest(1), {30})])
def test_the_store_keeps_the_checkpoints_that_it_is_told_to(memory_path: Path, keep: RetentionPolicy, steps: set[int]) -> None:
    """Whatever is pruned here meanwhile."""
    run, store = memory_path / "a", LocalStore(memory_path / "store")
    for until in (12, 25, 38):
        trained(run, until)
        ship(run, store, keep=keep)
    manifest, _ = read_newest(store, "a/rank0")
    assert manifest is not None
    assert {one.row.step for one in manifest.checkpoints} == steps  # type: ignore[union-attr]
    assert set(store.names("a/rank0/objects")) == objects_named(store), "nothing is left over"
    assert_comes_back(store, "a/rank0", memory_path / "b", 38)


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


def test_a_catalog_that_was_rebuilt_finds_its_store_again(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    ship(run, store)
    before = {name for name in store.objects if "/objects/" in name}
    for path in (run / "rank0").glob("catalog.lmdb*"):
        path.unlink()
    toy(run).journal.close()
    assert ship(run, store).archived == 15
    assert {name for name in store.objects if "/objects/" in name} == before


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


def test_without_a_durable_manifest_nothing_is_persisted(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    with closing(archiver(run, store, persist_seconds=1e9)) as made:
        assert drain(made).persisted == 15
        forget_manifests(store)
        for name in manifest_names(store, "a/rank0"):
            del store.objects[name]
        trained(run, 27)
        found = drain(made)
    assert (found.archived, found.persisted, marks(run).persisted) == (27, 0, 0)


def test_a_manifest_that_is_lost_is_written_again(memory_path: Path) -> None:
    """Nothing else has changed, and nothing else would write one."""
    trained(memory_path / "a", 12)
    store = FaultyStore()
    store.is_durable = False
    with closing(archiver(memory_path / "a", store)) as made:
        drain(made)
        names = manifest_names(store, "a/rank0")
        store.lost.update(names)
        drain(made)
        [written, *_] = manifest_names(store, "a/rank0")
        assert parse_manifest_name(written)[0] > parse_manifest_name(names[0])[0]
        store.lost.clear()
        store.is_durable = True
        assert drain(made).persisted == 12
    assert_comes_back(store, "a/rank0", memory_path / "b", 12)


# Journals of one group: none gives up what all of them need to come back together.


def trained_as_one_of(run: Path, until: int, *, world: int = 2, rewinds_to: int | None = None) -> None:
    """Train a run that knows itself to be one journal of several; a checkpoint every ten steps."""
    trainer = open_only(run)
    trainer.recover(rewinds_to)
    trainer.journal.holds.set_common_step(0, world)
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
