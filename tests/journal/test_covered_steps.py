"""A boundary can cover steps of which no tensors are logged: redo ends before it, and every reader tells which they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.format.format_reader import DocumentSegment
from tests.support.command_line import call_tranlogs
from tests.support.toy import ToyTrainer
from tests.support.toy_steps import boundary_of, killed, state_at, step_of
from tests.support.verify import verify_run
from tranlogs.base.errors import LogUnavailable, RecoveryError
from tranlogs.log.record_format import COVERED_MAX
from tranlogs.verify import Problem


def covered_steps(trainer: ToyTrainer, count: int) -> None:
    """Steps of which only the boundary after the last one is logged."""
    state, first = trainer.state, trainer.journal.step
    for step in range(first + 1, first + count + 1):
        state.take_step(step)
    boundary_of(trainer, covered=count, digests=state.digest().to_bytes(8, "little"))


@pytest.mark.parametrize("writer", ["direct", "thread"])
def test_redo_ends_before_covered_steps_and_the_boundary_tells_where_training_arrives(
    toy: Callable[..., ToyTrainer], tmp_path: Path, writer: str
) -> None:
    trainer = toy(writer=writer)
    trainer.recover()
    trainer.train(4)
    covered_steps(trainer, 5)
    trainer.train(11)
    step_of(trainer)
    covered_steps(trainer, 2)
    trainer.journal.wait_synced()
    assert (trainer.journal.step, trainer.journal.committed) == (14, 14)
    run = killed(trainer, tmp_path / "killed")
    assert not [finding for finding in verify_run(run) if isinstance(finding, Problem)]
    again = toy(run)
    report = again.recover()
    assert (report.step, report.replayed, report.exact) == (4, 4, True)
    assert again.state.everything() == state_at(4)
    assert "the log has no tensors of steps 5 to 14: training computes them again" in report.notes
    entries = [entry for path in sorted((run / "rank0" / "log").glob("*.seg")) for entry in DocumentSegment(path).entries()]
    assert [(entry.step, entry.covered) for entry in entries if entry.covered] == [(9, 5), (14, 2)]
    [nine] = [entry for entry in entries if entry.covered == 5]
    again.train(9)
    assert again.state.digest().to_bytes(8, "little") == nine.digests
    assert again.state.lr == nine.boundary["lr"]


def test_a_checkpoint_leads_on_after_covered_steps(toy: Callable[..., ToyTrainer], tmp_path: Path) -> None:
    trainer = toy()
    trainer.recover()
    covered_steps(trainer, 3)
    trainer.journal.checkpoint(trainer.state.snapshot(), wait=True)
    trainer.train(6)
    again = toy(killed(trainer, tmp_path / "killed"))
    report = again.recover()
    assert (report.step, report.checkpoint_step, report.notes) == (6, 3, ())
    assert again.state.everything() == state_at(6)
    with pytest.raises(RecoveryError, match="step 2 is not covered"):
        toy(killed(trainer, tmp_path / "other")).recover(2)


def test_covered_steps_count_also_while_logging_is_suspended_and_more_than_the_format_holds_suspend_it(
    toy: Callable[..., ToyTrainer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = toy()
    trainer.recover()
    boundary_of(trainer, covered=COVERED_MAX)
    assert not trainer.journal.is_suspended
    boundary_of(trainer, covered=COVERED_MAX + 1)
    assert trainer.journal.is_suspended
    assert str(LogUnavailable(f"a boundary covers at most {COVERED_MAX} steps")) in caplog.text
    boundary_of(trainer, covered=7)
    assert (trainer.journal.step, trainer.journal.committed) == (2 * COVERED_MAX + 8, COVERED_MAX)


def test_no_checkpoint_is_taken_of_a_state_behind_the_newest_boundary(toy: Callable[..., ToyTrainer]) -> None:
    """It would be that of a boundary, with the weights of a later step."""
    trainer = toy()
    trainer.recover()
    trainer.train(2)
    trainer.journal.count_step()
    with pytest.raises(AssertionError, match="a checkpoint of no boundary: 1 steps came since the last one"):
        trainer.journal.checkpoint(trainer.state.snapshot())
    boundary_of(trainer)
    assert trainer.journal.checkpoint(trainer.state.snapshot())


@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_boundary_that_covers_another_number_of_steps_is_refused(toy: Callable[..., ToyTrainer], wrong: int) -> None:
    """A step whose record was lost is not hidden behind a boundary that covers others."""
    trainer = toy()
    trainer.recover()
    trainer.train(2)
    trainer.journal.step += wrong
    boundary_of(trainer, covered=3)
    assert trainer.journal.is_suspended
    assert trainer.journal.committed == 2


def test_the_command_line_names_covered_steps(
    toy: Callable[..., ToyTrainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # no line is wrapped
    trainer = toy()
    trainer.recover()
    trainer.train(2)
    covered_steps(trainer, 5)
    run = killed(trainer, tmp_path / "killed")

    def call(*words: object) -> str:
        code, out = call_tranlogs(*words)
        assert code == 0, out
        return out

    assert "goes back to step 2: checkpoint 0 and 2 steps of log; training computes steps 3 to 7 again" in call("status", run)
    [rank] = json.loads(call("status", run, "--json"))["ranks"]
    assert (rank["watermarks"]["committed"], rank["recovery"]["step"], rank["recovery"]["computed_again"]) == (7, 2, 5)
    assert "3 to 7" in call("log", run)
    assert "steps 3 to 7, without tensors: only training can compute them again" in call("log", run, "--step", 5)
    [rank] = json.loads(call("log", run, "--step", 3, "--json"))["ranks"]
    assert [(record["step"], record["covered"]) for record in rank["records"]] == [(7, 5)]
