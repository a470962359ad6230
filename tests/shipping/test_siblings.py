"""Journals of one group in a store: none gives up what all of them need to come back together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shipping.ships import drain, open_only, train_calmly
from tests.support.faulty_store import FaultyStore
from tranlogs.base.clock import Clock
from tranlogs.journal import JournalPaths
from tranlogs.retention.keep_policy import KeepLatest
from tranlogs.shipping import Archiver, ShippingSettings, read_newest
from tranlogs.stores import Store
from tranlogs.stores.local import LocalStore


def trained(run: Path, until: int, *, world: int = 2, rewinds_to: int | None = None) -> None:
    """Train a run that knows itself to be one journal of several; a checkpoint every ten steps."""
    trainer = open_only(run)
    trainer.recover(rewinds_to)
    trainer.journal.holds.set_common_step(0, world)
    train_calmly(trainer, until)
    trainer.journal.close()


def shipped(run: Path, store: Store, place: str, keep: int = 1) -> list[int]:
    """Ship all that can be; the steps of the checkpoints that the store has then."""
    made = Archiver(JournalPaths.of(run), store, place, ShippingSettings(keep=KeepLatest(keep)), Clock())
    try:
        drain(made)
    finally:
        made.close()
    manifest, _ = read_newest(store, place)
    assert manifest is not None
    return sorted({one.row.step for one in manifest.checkpoints})  # type: ignore[union-attr]


@pytest.fixture
def store(memory_path: Path) -> Store:
    return LocalStore(memory_path / "store")


def test_the_newest_checkpoint_that_all_reach_stays(memory_path: Path, store: Store) -> None:
    one, other = memory_path / "a", memory_path / "b"
    trained(one, 15)
    assert shipped(one, store, "run/rank0") == [0, 10], "the other one has nothing there"
    trained(other, 15)
    assert shipped(other, store, "run/rank1") == [10]
    trained(one, 35)
    assert shipped(one, store, "run/rank0") == [10, 30], "the other one cannot come beyond 15"
    trained(other, 35)
    assert shipped(other, store, "run/rank1") == [30]
    assert shipped(one, store, "run/rank0") == [30]


def test_after_a_rewind_only_what_lies_on_the_same_timeline_counts(memory_path: Path, store: Store) -> None:
    one, other = memory_path / "a", memory_path / "b"
    for run, place in ((one, "run/rank0"), (other, "run/rank1")):
        trained(run, 35)
        shipped(run, store, place)
    trained(one, 45, rewinds_to=30)
    assert shipped(one, store, "run/rank0") == [0, 40], "the other one has nothing there on the new timeline"
    trained(other, 45, rewinds_to=30)
    shipped(other, store, "run/rank1")
    assert shipped(one, store, "run/rank0") == [40]


def test_a_run_of_one_journal_asks_for_no_other(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 25, world=1)
    assert shipped(run, store, "run/rank0") == [20]
    assert not any("rank1" in str(call) for call in store.calls)
