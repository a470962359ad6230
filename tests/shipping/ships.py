"""Toy runs that are shipped, step by step and without threads that decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.toy import ToyTrainer, open_toy, uninterrupted
from tranlogs.base.clock import Clock
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.catalog import Catalog, StoreRow, Watermarks
from tranlogs.journal import JournalPaths
from tranlogs.retention import EverySteps
from tranlogs.shipping import Archiver, ShippingProgress, ShippingSettings, journal_prefix, pull, read_newest
from tranlogs.stores import Store, TimeoutStore

SIZES = (7, 3000, 40_000)  # a step takes a third of a megabyte


def toy(run: Path, **options: Any) -> ToyTrainer:
    """A trainer that rolls its log every few steps; recovered."""
    trainer = open_only(run, **options)
    trainer.recover()
    return trainer


def open_only(run: Path, *, every: int = 10, segment_bytes: int = 2 * MIB, **options: Any) -> ToyTrainer:
    """The same before its recovery."""
    config = JournalConfig(durability="process", segment_bytes=segment_bytes)
    return open_toy(run, config=config, policy=EverySteps(every), **options)


def trained(run: Path, until: int, **options: Any) -> None:
    """Train a run to a step, and close it: all is sealed."""
    trainer = toy(run, **options)
    train_calmly(trainer, until, options.get("every", 10))
    trainer.journal.close()


def train_calmly(trainer: ToyTrainer, until: int, every: int = 10) -> None:
    """Train to a step, and let each checkpoint be written: one that falls due while another is written comes later."""
    for step in (*range(every, until, every), until):
        trainer.train(step)
        trainer.journal.wait_checkpoint()


def trained_otherwise(run: Path, until: int) -> bytes:
    """Another future than `trained` gives; its end."""
    trainer = toy(run)
    trainer.state.lr *= 2
    trainer.train(until)
    state = trainer.state.everything()
    trainer.journal.close()
    return state


def archiver(run: Path, store: Store, *, stall_seconds: float = 20.0, clock: Any = None, **limits: Any) -> Archiver:
    paths, patient = JournalPaths.of(run), TimeoutStore(store, stall_seconds)
    settings = ShippingSettings(**limits)
    return Archiver(paths, patient, journal_prefix(paths), settings, clock or Clock())


def ship(run: Path, store: Store, *, turns_max: int = 400, **options: Any) -> ShippingProgress:
    """Ship all that can be shipped now; gives how far that is."""
    made = archiver(run, store, **options)
    try:
        return drain(made, turns_max=turns_max)
    finally:
        made.close()


def drain(made: Archiver, *, turns_max: int = 400) -> ShippingProgress:
    """Turn until nothing is left to do."""
    for _ in range(turns_max):
        found = made.run_once()
        if found.items_left == 0 and not found.problem and made.run_once() == found:
            return found
        made.wait(0.05)
    raise AssertionError(f"it does not come to an end: {found}")


def marks(run: Path) -> Watermarks:
    catalog = Catalog.open(run / "rank0")
    try:
        return catalog.watermarks()
    finally:
        catalog.close()


def store_row(run: Path) -> StoreRow | None:
    catalog = Catalog.open(run / "rank0")
    try:
        found: StoreRow | None = catalog.read(lambda tables: tables.get("store", StoreRow))
        return found
    finally:
        catalog.close()


def objects_named(store: Store, place: str = "a/rank0") -> set[str]:
    """All objects that the newest manifest of a journal names."""
    manifest, _ = read_newest(store, place)
    assert manifest is not None
    return {name for one in manifest.shipped.values() for name in one.names()}


def assert_comes_back(store: Store, place: str, folder: Path, step: int) -> None:
    """A machine that has nothing but the store comes to `step`, bit for bit, and trains on."""
    found = pull(store, place, folder / "rank0")
    assert (found.step, found.steps_lost) == (step, 0)
    trainer = toy(folder)
    assert trainer.journal.step == step
    trainer.train(step + 4)
    assert trainer.state.everything() == uninterrupted(step + 4).everything()
    trainer.journal.close()
