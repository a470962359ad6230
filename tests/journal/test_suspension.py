"""Logging is suspended and goes on: what is claimed to be safe is, it is said once, and older checkpoints make room."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.clock import FakeClock
from tests.support.faults import failing
from tests.support.toy import ToyTrainer
from tests.support.toy_steps import boundary_of, checkpoint_steps, killed, patiently, state_at, step_of, warnings
from tranlogs.catalog import Incident
from tranlogs.journal import read_owner
from tranlogs.journal.shutdown import ShutdownHandler
from tranlogs.retention import CheckpointFacts, EverySteps, KeepAll, KeepLatest, RetentionPolicy


def suspended(trainer: ToyTrainer, at: int, rule: str = "log.begin=enospc") -> None:
    """Train to a step behind which the disk is full."""
    trainer.train(at)
    trainer.journal.wait_checkpoint()
    trainer.journal.wait_synced()
    with failing(rule):
        trainer.train(at + 1)
    assert trainer.journal.is_suspended


@pytest.mark.parametrize("durability", ["process", "machine"])
def test_while_suspended_committed_and_synced_stay_where_they_were(toy: Callable[..., ToyTrainer], durability: str) -> None:
    clock = FakeClock()
    trainer = toy(clock=clock, durability=durability)
    trainer.recover()
    suspended(trainer, 5)
    for until in (8, 12):
        clock.advance(100)
        with failing("checkpoint.state=enospc"):
            trainer.train(until)
        assert trainer.journal.is_suspended
        assert (trainer.journal.step, trainer.journal.committed) == (until, 5)
        assert durability == "process" or trainer.journal.synced == 5
        assert trainer.journal.catalog.watermarks().committed == 5
    clock.advance(100)
    trainer.train(13)
    assert not trainer.journal.is_suspended
    assert trainer.journal.committed == 13


def test_a_checkpoint_of_a_boundary_that_was_not_logged_is_not_taken(toy: Callable[..., ToyTrainer]) -> None:
    """Records are handed over: the boundary fails behind the training thread. Its state must not get an older name."""
    trainer = toy(writer="thread")
    trainer.recover()
    trainer.train(4)
    trainer.journal.wait_synced()
    with failing("log.before_commit=eio"):
        step_of(trainer)
        boundary_of(trainer)
        assert not trainer.journal.checkpoint(trainer.state.snapshot(), wait=True)
    assert trainer.journal.is_suspended
    assert checkpoint_steps(trainer) == [0]
    trainer.journal.close()
    again = toy()
    assert (again.recover().step, again.state.everything() == state_at(4)) == (4, True)


def test_policies_of_the_user_s_own_that_fail_cost_neither_training_nor_a_checkpoint(
    toy: Callable[..., ToyTrainer], caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong:
        def is_due(self, facts: CheckpointFacts) -> bool:
            raise ZeroDivisionError("of the policy")

        def kept(self, steps: Any) -> Any:
            return None

    trainer = toy(policy=Wrong(), retention=Wrong())
    trainer.recover()
    patiently(trainer, 6)
    trainer.journal.boundary(trainer.state.auxiliary(), trainer.state.snapshot, checkpoint=True)
    trainer.journal.wait_checkpoint()
    assert checkpoint_steps(trainer) == [0, 6]
    assert sum("the checkpoint policy failed" in r.message for r in caplog.records) == 1
    assert any("could not delete expired segments and checkpoints" in r.message for r in caplog.records)
    assert not any("a checkpoint could not be written" in r.message for r in caplog.records)
    assert trainer.state.everything() == state_at(6)


def incidents(trainer: ToyTrainer) -> list[tuple[int, int | None]]:
    return [(row.from_step, row.to_step) for row in trainer.journal.catalog.incidents()]


def test_an_incident_lasts_until_logging_goes_on(toy: Callable[..., ToyTrainer], tmp_path: Path) -> None:
    clock = FakeClock()
    trainer = toy(clock=clock)
    trainer.recover()
    suspended(trainer, 5)
    assert incidents(trainer) == [(5, None)]
    trainer.train(9)
    again = toy(killed(trainer, tmp_path / "killed"))  # the next process ends what a dead one left
    assert again.recover().step == 5
    again.train(6)
    assert incidents(again) == [(5, 5)]
    clock.advance(100)
    trainer.train(10)
    assert incidents(trainer) == [(5, 10)]
    suspended(trainer, 12)
    assert incidents(trainer) == [(5, 10), (12, None)]


@pytest.mark.parametrize(("writer", "fault"), [("direct", "log.sync"), ("direct", "log.seal"), ("thread", "log.before_commit")])
def test_a_close_that_loses_something_says_so(
    toy: Callable[..., ToyTrainer], caplog: pytest.LogCaptureFixture, writer: str, fault: str
) -> None:
    trainer = toy(writer=writer, durability="machine")
    trainer.recover()
    trainer.train(4)
    trainer.journal.wait_synced()
    with failing(f"{fault}=eio"):
        step_of(trainer)
        boundary_of(trainer)
        trainer.journal.close()
    *before, last = warnings(caplog)
    if before:  # the thread that writes met the fault before `close` did
        assert writer == "thread"
        assert "logging is suspended at step 5" in before[0]
        assert "closed while logging was suspended; steps after 4 are lost" in last
    else:
        assert "could not be closed cleanly" in last
    assert fault in (before or [last])[0]
    assert toy().recover().step == (4 if writer == "thread" else 5)


def test_a_signal_while_suspended_says_what_is_lost_and_ships_the_rest(
    toy: Callable[..., ToyTrainer], caplog: pytest.LogCaptureFixture
) -> None:
    trainer = toy()
    trainer.recover()
    suspended(trainer, 4)
    shipped = list[int]()
    handler = ShutdownHandler(trainer.journal, lambda step, _: shipped.append(step), None, 5.0)
    try:
        handler.shut_down("SIGTERM", time.monotonic() + 5)
    finally:
        handler.close()
    said = caplog.records[-1].getMessage()
    assert "SIGTERM: the process ends while logging is suspended" in said
    assert "are safe" not in said
    assert shipped == [4]


def test_a_clean_close_says_that_all_is_safe(toy: Callable[..., ToyTrainer], caplog: pytest.LogCaptureFixture) -> None:
    trainer = toy(durability="machine")
    trainer.recover()
    trainer.train(4)
    caplog.set_level(logging.INFO)
    trainer.journal.close()
    assert "closed; steps up to 4 are safe" in caplog.records[-1].getMessage()
    assert (trainer.journal.committed, trainer.journal.synced) == (4, 4)


def test_an_incident_replaces_no_other_after_a_row_was_lost(toy: Callable[..., ToyTrainer]) -> None:
    clock = FakeClock()
    trainer = toy(clock=clock)
    trainer.recover()
    catalog = trainer.journal.catalog
    with catalog.transaction() as tables:  # as a rebuilt catalog has them: the second row was damaged
        for number in (1, 3):
            tables.put(f"incident/{number:06d}", Incident(number, "the disk was full", 1, 1.0, 2, 2.0))
    suspended(trainer, 5)
    clock.advance(100)
    trainer.train(8)
    assert not trainer.journal.is_suspended
    found = [(row.number, row.from_step, row.to_step) for row in catalog.incidents()]
    assert found[:2] == [(1, 1, 2), (3, 1, 2)]
    assert [number for number, *_ in found] == [1, 3, 4]


def test_a_journal_that_could_not_be_closed_does_not_count_as_closed(tmp_path: Path, toy: Callable[..., ToyTrainer]) -> None:
    trainer = toy(durability="machine")
    trainer.recover()
    trainer.train(5)
    trainer.journal.note_finished("complete")
    with failing("log.seal=eio"):
        trainer.journal.close()
    owner = read_owner(trainer.journal.paths.folder)
    assert owner is not None
    assert (owner.is_alive, owner.has_closed, owner.has_finished) == (False, False, False)
    again = toy()
    assert not again.journal.was_finished
    assert again.recover().step == 5
    again.journal.close()
    owner = read_owner(trainer.journal.paths.folder)
    assert owner is not None
    assert owner.has_closed


KEEPS = [  # retention, error, and whether older checkpoints are given up
    (KeepLatest(3), "enospc", True),
    (KeepLatest(3), "eio", False),
    (KeepLatest(1), "enospc", False),
    (KeepAll(), "enospc", False),
]


EACH_KEEP = pytest.mark.parametrize(("keep", "error", "is_room_made"), KEEPS, ids=str)


@pytest.fixture
def trainer(memory_path: Path, clock: FakeClock, toy: Callable[..., ToyTrainer], keep: RetentionPolicy) -> ToyTrainer:
    made = toy(memory_path / "run", policy=EverySteps(10), retention=keep, clock=clock, durability="machine")
    made.recover()
    patiently(made, 39)
    return made


def end(toy: Callable[..., ToyTrainer], trainer: ToyTrainer) -> None:
    """It goes on as usual, and what comes back is right."""
    step = trainer.journal.step
    trainer.journal.close()
    again = toy(trainer.journal.paths.folder.parent)
    assert again.recover().step == step
    assert again.state.everything() == state_at(step)


@EACH_KEEP
def test_a_checkpoint_takes_the_place_of_older_ones(
    trainer: ToyTrainer, toy: Callable[..., ToyTrainer], error: str, is_room_made: bool, caplog: pytest.LogCaptureFixture
) -> None:
    before = checkpoint_steps(trainer)
    with failing(f"checkpoint.state={error}@1"):
        trainer.train(41)
        trainer.journal.wait_checkpoint()
        trainer.train(42)
    assert checkpoint_steps(trainer) == ([30, 40] if is_room_made else before)
    told = warnings(caplog)
    assert len(told) == 1
    assert ("only the newest checkpoint is kept" in told[0]) is is_room_made
    end(toy, trainer)


@EACH_KEEP
def test_the_log_goes_on_at_once_in_the_place_of_older_checkpoints(
    trainer: ToyTrainer, toy: Callable[..., ToyTrainer], clock: FakeClock, error: str, is_room_made: bool
) -> None:
    before, journal = checkpoint_steps(trainer), trainer.journal
    with failing(f"log.begin={error}@1"):
        trainer.train(40)
    assert journal.is_suspended is not is_room_made
    assert (journal.committed, checkpoint_steps(trainer)) == ((40, [30, 40]) if is_room_made else (39, before))
    clock.advance(100)
    trainer.train(42)
    assert (journal.is_suspended, journal.committed) == (False, 42)
    assert len(journal.catalog.incidents()) == 1
    end(toy, trainer)


@pytest.mark.parametrize("keep", [KeepLatest(3)], ids=str)
def test_nothing_is_given_up_for_a_rewind_that_has_not_begun(
    trainer: ToyTrainer, toy: Callable[..., ToyTrainer], clock: FakeClock, keep: RetentionPolicy
) -> None:
    """As long as the catalog does not tell where a run goes on, its newest checkpoint is not the one that this needs."""
    before = checkpoint_steps(trainer)
    trainer.journal.close()
    run = trainer.journal.paths.folder.parent
    again = toy(run, retention=keep, clock=clock)
    assert again.recover(step=25).step == 25
    with failing("catalog.before_commit=enospc@1"):
        again.train(27)
    assert again.journal.is_suspended
    assert checkpoint_steps(again) == before
    clock.advance(100)
    again.train(29)
    assert (again.journal.is_suspended, again.journal.committed) == (False, 29)
    again.journal.close()
