"""What a store has of a run counts for a journal only where it is that one's own past."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.shipping.ships import archiver, drain, marks, ship, toy, trained, trained_otherwise
from tests.support.faulty_store import FaultyStore
from tranlogs.catalog import Catalog
from tranlogs.retention.keep_policy import KeepAll
from tranlogs.shipping import archiver as archiver_module
from tranlogs.shipping import pull, read_newest


def lose_catalog(run: Path) -> None:
    for path in (run / "rank0").glob("catalog.lmdb*"):
        path.unlink()
    toy(run).journal.close()  # rebuilds it


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiver_module, "RETRY_SECONDS_MIN", 0.01)
    monkeypatch.setattr(archiver_module, "RETRY_SECONDS_MAX", 0.05)


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
        made = archiver(run, store)
        try:
            assert "another history of this run, up to step 25, and this folder ends at step 12" in made.run_once().problem
        finally:
            made.close()
    assert store.objects == there, "of what leads further nothing is taken away unasked"
    made = archiver(run, store, keep=KeepAll(), takes_over=True)
    try:
        assert drain(made).archived == 12, "what lies behind its end is another past"
        assert (marks(run).committed, marks(run).archived, marks(run).persisted) == (12, 12, 12)
        assert "up to step 25, is superseded" in caplog.text
        assert shared <= set(store.objects), "it is not sent again"
        state = trained_otherwise(run, 22)
        assert drain(made).archived == 22
    finally:
        made.close()
    found = pull(store, "a/rank0", memory_path / "b/rank0")
    assert (found.step, found.steps_lost) == (22, 0)
    again = toy(memory_path / "b")
    assert again.state.everything() == state
    again.journal.close()


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
    made = archiver(run, store)
    try:
        assert made.run_once().is_refused
        assert (marks(run).committed, marks(run).archived, marks(run).persisted) == (18, 12, 12)
        state = trained_otherwise(run, 26)
        while made.run_once().archived < 26:
            made.wait()
    finally:
        made.close()
    assert pull(store, "a/rank0", memory_path / "b/rank0").step == 26
    again = toy(memory_path / "b")
    assert again.state.everything() == state
    again.journal.close()


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
    same = before.shipped.keys() & after.shipped.keys()
    assert [name for name in same if "step-0000000020" in name], "both have it"
    assert all(before.shipped[name].row != after.shipped[name].row for name in same if "step-0000000020" in name)
    assert pull(store, "a/rank0", memory_path / "b/rank0").step == 22
    again = toy(memory_path / "b")
    assert again.state.everything() == state
    again.journal.close()


def test_a_checkpoint_that_was_taken_anew_is_sent_again(memory_path: Path) -> None:
    """While it is shipped: recovery came not as far as it, and its step came again."""
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    made = archiver(run, store)
    try:
        drain(made)
        catalog = Catalog.open(run / "rank0", writable=True)
        [row] = [row for row in catalog.checkpoints() if row.step == 10]
        with catalog.transaction() as tables:
            tables.put(f"checkpoint/{row.name}", replace(row, chain="0" * 16))
        catalog.close()
        drain(made)
        manifest, _ = read_newest(store, "a/rank0")
        assert manifest is not None
        assert manifest.shipped[row.name].row.chain == "0" * 16  # type: ignore[union-attr]
    finally:
        made.close()


def test_what_was_pruned_here_stays_there(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    for until in (12, 25, 38):
        trained(run, until)
        ship(run, store, keep=KeepAll())
    before = {name for name in store.objects if "/objects/" in name}
    ship(run, store, keep=KeepAll())
    assert {name for name in store.objects if "/objects/" in name} == before
    manifest, _ = read_newest(store, "a/rank0")
    assert manifest is not None
    assert {one.row.step for one in manifest.checkpoints} == {0, 10, 20, 30}  # type: ignore[union-attr]
