"""Runs that log no tensors: after a crash the loop computes the steps since the last checkpoint again, and each recorded
boundary on the way is compared.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import campaign
from tests.support.damage import flip_bit
from tests.torch import scripts
from tests.torch.lab import Attempt, differences, in_child, prove_exact, uninterrupted
from tests.torch.replay.test_exact_matrix import matrices
from tranlogs.base.errors import UsageError
from tranlogs.recovery.journal_facts import read_facts
from tranlogs.training import cadence
from tranlogs.training.recheck_messages import NOTHING_RECORDED
from tranlogs_torch import LoggedOptimizer

pytestmark = pytest.mark.crash


@pytest.fixture
def every(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each boundary be recorded."""
    monkeypatch.setattr(cadence, "_SECONDS", 0.0)
    monkeypatch.setattr(cadence, "_SHARE", 1e9)


@pytest.fixture
def none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no boundary be recorded between the first one and the end of a loop."""
    monkeypatch.setattr(cadence, "_SECONDS", 1e9)


def lbfgs(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)


KINDS: dict[str, tuple[scripts.Script, tuple[int, ...]]] = {
    "batches": (scripts.batches, (6, 3, 12, 2)),
    "epochs": (scripts.epochs, (9, 3, 6, 13)),
    "a GradScaler": (scripts.mixed_precision, (11, 5, 7, 14)),
    "many steps or none": (scripts.many_or_none, (8, 5, 9)),
    "two sources": (scripts.second_source, (9, 4, 6)),
    "LBFGS": (partial(matrices, optimizer_of=lbfgs, closure=True), (23, 9)),
}


@pytest.mark.usefixtures("every")
@pytest.mark.parametrize(("kind", "checkpoint_every"), campaign.each_once(list(KINDS), [4, 1000]))
def test_a_loop_of_any_kind_comes_back_to_the_bit(kind: str, checkpoint_every: int, tmp_path: Path) -> None:
    script, ticks = KINDS[kind]
    prove_exact(script, tmp_path / "run", ticks[: campaign.few(len(ticks))], log="inputs", checkpoint_every=checkpoint_every)


@pytest.mark.usefixtures("none")
def test_what_is_not_recorded_is_computed_again_all_the_same(tmp_path: Path) -> None:
    run, options = tmp_path / "run", {"log": "inputs", "checkpoint_every": 1000}
    assert in_child(lambda: scripts.epochs(Attempt(run, 9, **options))) == -signal.SIGKILL
    shutil.copytree(run, tmp_path / "once")
    last = prove_exact(scripts.epochs, tmp_path / "once", **options)
    assert last.final_report().rechecked == 1, "the first boundary was recorded, and no other"
    last = prove_exact(scripts.epochs, run, (14,), is_exact=None, **options)
    assert last.reports[0].checkpoint_step == 1, "what was computed again got a checkpoint"
    assert NOTHING_RECORDED in str(last.final_report()), "behind which nothing was recorded"


@pytest.mark.usefixtures("every")
def test_the_order_in_which_states_came_to_be_is_no_difference(tmp_path: Path) -> None:
    def thawing(attempt: Attempt) -> None:
        model, optimizer, loader = scripts.begin(attempt)
        attempt.start(optimizer)
        for number, batch in optimizer.batches(loader, until=scripts.TURNS, enumerate=True):
            model[0].requires_grad_(number >= 3)
            scripts.step(attempt, model, optimizer, batch)
            if attempt.run and number == 5:
                optimizer.checkpoint()
            if attempt.run and number == 6:
                optimizer.training_run.journal.wait_checkpoint()
        attempt.keep(model=model, optimizer=optimizer)
        optimizer.close()

    last = prove_exact(thawing, tmp_path / "run", (11,), log="inputs", checkpoint_every=1000)
    assert last.reports[0].checkpoint_step == 6, "the states of all layers are there, in the order in which they came to be"


def noisy(attempt: Attempt, *, noise: bool) -> None:
    """The gradients of the sixth batch are not those of another process."""
    model, optimizer, loader = scripts.begin(attempt)
    attempt.start(optimizer)
    for number, batch in optimizer.batches(loader, until=scripts.TURNS, enumerate=True):
        found = scripts.loss(model, batch)
        if noise and number == 5:
            found = found * float(os.getpid())
        found.backward()
        attempt.tick()
        optimizer.step()
        optimizer.zero_grad()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


@pytest.mark.usefixtures("every")
def test_a_loop_that_does_not_repeat_itself_is_named_and_what_it_computes_holds(tmp_path: Path) -> None:
    run, options = tmp_path / "run", {"log": "inputs", "checkpoint_every": 1000}
    assert in_child(lambda: noisy(Attempt(run, 10, **options), noise=True)) == -signal.SIGKILL
    assert in_child(lambda: noisy(Attempt(run, 12, **options), noise=True)) == -signal.SIGKILL
    last = Attempt(run, **options)
    noisy(last, noise=True)
    first, report = last.reports[0], last.final_report()
    # The second process has found it out at step 6, and begun anew there with a checkpoint.
    assert (first.step, first.checkpoint_step, report.exact) == (6, 6, False)
    [note] = [note for note in report.notes if "computed again, and at step 6 weights or optimizer state differ" in note]
    assert "at least 4 finished steps are others than before the crash" in note
    assert "an earlier resume of this run differed" in note


@pytest.mark.usefixtures("every")
def test_what_was_found_to_differ_is_known_to_the_next_process(tmp_path: Path) -> None:
    """Also if the one that found it dies before its next boundary."""

    def drawing(attempt: Attempt, numbers: int) -> None:
        model, optimizer, loader = scripts.begin(attempt)
        attempt.start(optimizer)
        for turn, batch in enumerate(optimizer.batches(loader, until=20), optimizer.report.step):
            if turn == 5:
                torch.rand(numbers)
            scripts.loss(model, batch).backward()
            optimizer.training_run.journal.wait_checkpoint()
            attempt.tick()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.close()

    options: dict[str, Any] = {"log": "inputs", "checkpoint_every": 1000}
    run = tmp_path / "run"
    for tick, numbers in ((9, 1), (7, 2)):  # the sixth unit differs, and the seventh is not finished
        assert in_child(lambda tick=tick, numbers=numbers: drawing(Attempt(run, tick, **options), numbers)) == -signal.SIGKILL
    last = Attempt(run, **options)
    drawing(last, 0)
    assert last.reports[0].step == 6, "behind the checkpoint of what holds"
    assert last.final_report().exact is False
    assert any("rng." in note for note in last.final_report().notes), last.final_report().notes


@pytest.mark.usefixtures("every")
def test_what_the_script_changes_after_recover_stands_and_the_next_start_goes_on_from_it(tmp_path: Path) -> None:
    def changing(attempt: Attempt, *, rate: float) -> None:
        model, optimizer, loader = scripts.begin(attempt)
        attempt.start(optimizer)
        optimizer.param_groups[0]["lr"] = rate
        for batch in optimizer.batches(loader, until=scripts.TURNS):
            if attempt.run is not None:
                optimizer.training_run.journal.wait_checkpoint()  # it is there before the process dies
            scripts.step(attempt, model, optimizer, batch)
        attempt.keep(model=model, optimizer=optimizer)
        optimizer.close()

    run, options = tmp_path / "run", {"log": "inputs", "checkpoint_every": 1000}
    for rate, tick in ((0.01, 6), (0.25, 4), (0.25, 4)):
        assert in_child(lambda rate=rate, tick=tick: changing(Attempt(run, tick, **options), rate=rate)) == -signal.SIGKILL
    last = Attempt(run, **options)
    changing(last, rate=0.25)
    # The second process began at step 0 with another rate, and took a checkpoint behind its first step. The third one computed
    # the second and the third step again, and took one there.
    assert (last.reports[0].checkpoint_step, last.final_report().exact) == (3, True)
    right = uninterrupted(partial(changing, rate=0.25))
    assert not differences(last.outcome(), right.outcome())


@pytest.mark.usefixtures("every")
@pytest.mark.parametrize(("before", "after"), [("gradients", "inputs"), ("inputs", "gradients")])
def test_the_kind_of_log_may_change_with_the_process(before: str, after: str, tmp_path: Path) -> None:
    run, right = tmp_path / "run", uninterrupted(scripts.epochs)
    assert in_child(lambda: scripts.epochs(Attempt(run, 9, log=before, checkpoint_every=1000))) == -signal.SIGKILL
    assert in_child(lambda: scripts.epochs(Attempt(run, 3, log=after, checkpoint_every=1000))) == -signal.SIGKILL
    last = Attempt(run, log=after, checkpoint_every=1000)
    scripts.epochs(last)
    assert not differences(last.outcome(), right.outcome())
    assert last.final_report().exact is True


@pytest.mark.usefixtures("every")
def test_a_damaged_boundary_is_named_and_the_steps_are_computed_all_the_same(tmp_path: Path) -> None:
    run, options = tmp_path / "run", {"log": "inputs", "checkpoint_every": 1000}
    assert in_child(lambda: scripts.epochs(Attempt(run, 9, **options))) == -signal.SIGKILL
    [segment] = read_facts(run / "rank0").segments
    location = next(one for one in segment.locations if one.head.step == 5)
    flip_bit(segment.path, random.Random(1), (location.offset + 100, location.offset + 164))
    last = prove_exact(scripts.epochs, run, **options)
    assert last.reports[0].checkpoint_step == 0
    assert any("damaged" in note for note in last.reports[0].notes)


@pytest.mark.usefixtures("every")
def test_a_script_is_told_whether_it_computes_again_and_a_finished_run_is_finished(tmp_path: Path) -> None:
    def asking(attempt: Attempt) -> list[bool]:
        model, optimizer, loader = scripts.begin(attempt)
        attempt.start(optimizer)
        answers = []
        for batch in optimizer.batches(loader, until=scripts.TURNS):
            answers.append(optimizer.is_recomputing)
            scripts.step(attempt, model, optimizer, batch)
        optimizer.close()
        return answers

    run, options = tmp_path / "run", {"log": "inputs", "checkpoint_every": 1000}
    assert in_child(lambda: asking(Attempt(run, 7, **options))) == -signal.SIGKILL
    assert asking(Attempt(run, **options)) == [True] * 6 + [False] * 10
    again = Attempt(run, **options)
    assert asking(again) == []
    assert (again.reports[0].step, again.reports[0].checkpoint_step) == (16, 16)
    assert "the run is finished" in str(again.reports[0])


def optimizer_of(run: Path, **options: Any) -> LoggedOptimizer:
    return LoggedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1), run, **({"log": "inputs"} | options))


def test_what_does_not_fit_is_refused_before_the_crash(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"checkpoint_every='256\.0 MiB' counts bytes of log"):
        optimizer_of(tmp_path / "a", checkpoint_every="256MiB")
    optimizer = optimizer_of(tmp_path / "b")
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(UsageError, match='log="inputs" holds for all optimizers of a run'):
        optimizer.add_optimizer(other, "other", log="gradients")
    optimizer.add_optimizer(other, "another")
    optimizer.recover()
    with pytest.raises(UsageError, match=r"taken outside of batches\(\), epochs\(\) and steps\(\)"):
        optimizer.step()
    optimizer.close()
    with pytest.raises(UsageError, match='log must be "auto", "gradients", "weights" or "inputs"'):
        optimizer_of(tmp_path / "c", log="values")


def test_a_step_that_gradients_cannot_redo_is_as_good_as_any(tmp_path: Path) -> None:
    """LBFGS, and steps that are given arguments, log weights otherwise, and say so."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = LoggedOptimizer(torch.optim.LBFGS([torch.nn.Parameter(torch.ones(2))]), tmp_path / "run", log="inputs")
    assert optimizer.hooks.log == "inputs"
    optimizer.close()
