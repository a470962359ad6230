"""Shipping a journal: in order, once, and only what is sound."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.shipping.ships import archiver, assert_comes_back, drain, marks, ship, store_row, toy, trained
from tests.support.faulty_store import FaultyStore
from tranlogs.base import config
from tranlogs.catalog import Catalog, CheckpointRow, ShippedRow
from tranlogs.retention.keep_policy import KeepAll, KeepLatest
from tranlogs.shipping import read_newest, upload
from tranlogs.stores.local import LocalStore


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
    monkeypatch.setattr(upload, "PART_BYTES_MAX", 100_000)
    run, store = memory_path / "a", FaultyStore()
    trained(run, 13)
    assert ship(run, store).archived == 13
    assert max(len(data) for name, data in store.objects.items() if "/objects/" in name) == 100_000
    assert_comes_back(store, "a/rank0", memory_path / "b", 13)


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
    opened = upload.open_checkpoint

    def open_late(folder: Path, row: CheckpointRow) -> upload.Source:
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
