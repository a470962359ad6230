"""A trainer has recovered to an older step and has not begun to write: a monitor that looks now takes nothing from under it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.monitor.test_watch import watching
from tests.shipping.ships import toy, trained
from tests.support.toy import open_toy
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.base.errors import RecoveryError
from tranlogs.catalog import Catalog
from tranlogs.recovery import recover
from tranlogs.recovery.recover import Recovered
from tranlogs.retention import EverySteps, KeepAll, KeepLatest
from tranlogs.retention.prune import Budget

LIMITS = [Budget(11 * MIB), Budget(checkpoints_max=2, segments_max=4)]


@pytest.mark.parametrize("budget", LIMITS, ids=["budget", "rules"])
def test_what_a_rewind_needs_stays(memory_path: Path, budget: Budget) -> None:
    run = memory_path / "run"
    trained(run, 60, retention=KeepAll())
    config = JournalConfig(durability="process", segment_bytes=2 * MIB)
    trainer = open_toy(run, config=config, policy=EverySteps(1000), retention=KeepAll())
    trainer.recover(step=25)
    trainer.state.lr *= 2  # another history from here on
    watch = watching(trainer, budget=budget)
    assert watch.evaluate().did_nothing, "only the trainer knows where it will go on"
    trainer.train(40)
    assert not watch.evaluate().did_nothing, "now the catalog does, too"
    watch.close()
    trainer.journal.wait_checkpoint()
    trainer.journal.close()
    again = toy(run, every=1000, retention=KeepAll())
    assert again.journal.step == 40
    assert again.state.everything() == trainer.state.everything()
    again.journal.close()


def test_a_monitor_that_looks_while_a_rewind_is_read_takes_nothing(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = memory_path / "run"
    trained(run, 60, retention=KeepAll())
    trainer = open_toy(run, config=JournalConfig(durability="process", segment_bytes=2 * MIB), retention=KeepAll())
    watch = watching(trainer, budget=LIMITS[1])

    def looked_at(*arguments: Any, **options: Any) -> Recovered | None:
        assert watch.evaluate().did_nothing
        return recover(*arguments, **options)

    monkeypatch.setattr("tests.support.toy.recover", looked_at)
    assert trainer.recover(step=25).step == 25
    watch.close()
    trainer.train(40)
    trainer.journal.wait_checkpoint()
    trainer.journal.close()


def test_a_hold_for_other_journals_is_not_weakened_by_a_rewind(memory_path: Path) -> None:
    run = memory_path / "run"
    trained(run, 60, retention=KeepAll())
    trainer = open_toy(run, config=JournalConfig(durability="process", segment_bytes=2 * MIB), retention=KeepAll())
    trainer.journal.holds.hold_during().__enter__()  # and it never leaves
    trainer.recover(step=25)
    trainer.journal.close()
    watch = watching(trainer, budget=LIMITS[1])
    assert watch.evaluate().did_nothing
    watch.close()


def test_one_that_goes_on_at_the_newest_step_holds_nothing_up(memory_path: Path) -> None:
    run = memory_path / "run"
    trained(run, 60, retention=KeepAll())
    trainer = toy(run, retention=KeepAll())
    watch = watching(trainer, budget=LIMITS[0])
    assert not watch.evaluate().did_nothing
    watch.close()
    trainer.journal.close()


def test_a_dead_trainer_holds_nothing(memory_path: Path) -> None:
    run = memory_path / "run"
    trained(run, 60, retention=KeepAll())
    catalog = Catalog.open(run / "rank0", writable=True)
    with catalog.transaction() as tables:
        tables.put_request("hold", {"pid": 1})
    trainer = toy(run, retention=KeepAll())
    trainer.journal.close()
    with catalog.transaction() as tables:
        tables.put_request("hold", {"pid": 1})
    watch = watching(trainer, budget=LIMITS[0])
    assert not watch.evaluate().did_nothing
    watch.close()
    catalog.close()


def test_what_other_journals_need_stays_until_they_do_not(memory_path: Path) -> None:
    """Also behind a process that died meanwhile, until another one goes on with the run."""
    run = memory_path / "run"
    trained(run, 60, retention=KeepAll())
    trainer = toy(run, every=1000, retention=KeepLatest(1))  # with no checkpoint, and no pruning, before the one below
    trainer.train(63)
    before = [row.step for row in trainer.journal.catalog.checkpoints()]
    assert len(before) > 1
    kept = trainer.journal.holds.hold_during()
    kept.__enter__()  # and it never leaves
    assert trainer.journal.checkpoint(trainer.state.snapshot(), wait=True)
    assert [row.step for row in trainer.journal.catalog.checkpoints()] == [*before, 63]
    trainer.journal.close()
    watch = watching(trainer, budget=LIMITS[1])
    assert watch.evaluate().did_nothing
    trainer = toy(run, retention=KeepLatest(1))
    trainer.train(64)
    assert not watch.evaluate().did_nothing
    watch.close()
    with trainer.journal.holds.hold_during():
        assert trainer.journal.checkpoint(trainer.state.snapshot(), wait=True)
    assert trainer.journal.catalog.read(lambda tables: tables.request("hold")) is None
    trainer.journal.close()


def test_what_was_pruned_while_an_unforeseen_landing_was_read_is_not_built_on(memory_path: Path) -> None:
    run = memory_path / "run"
    trained(run, 60, retention=KeepAll())
    trainer = open_toy(run, config=JournalConfig(durability="process", segment_bytes=2 * MIB), retention=KeepAll())
    found = recover(trainer.journal.paths.folder, trainer.state, step=25)
    assert found is not None
    watch = watching(trainer, budget=LIMITS[1])
    assert not watch.evaluate().did_nothing
    watch.close()
    with pytest.raises(RecoveryError, match="a monitor pruned this journal while it was being recovered"):
        trainer.journal.continue_from(found.position, new_timeline=found.plan.has_later)
    trainer.journal.close()
