"""log="auto": gradients where they cost at most what is allowed, else no tensors; kills in each phase, and between them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import campaign
from tests.support.rungs import shorten_trials
from tests.torch import scripts
from tests.torch.lab import Attempt, differences, in_child, uninterrupted
from tranlogs.base.errors import UsageError
from tranlogs.recovery.journal_facts import read_catalog
from tranlogs.training import parse_overhead, rungs
from tranlogs.training.rungs import FollowedRung, MeasuredRung
from tranlogs_torch import LoggedOptimizer


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a trial be of three units each, a new one come with each checkpoint, and each boundary be recorded."""
    shorten_trials(put=monkeypatch.setattr)


def run_through(rung: MeasuredRung, monkeypatch: pytest.MonkeyPatch, logged: float, plain: float) -> None:
    """Let a trial pass, of units that take so many seconds with gradients and without."""
    now = 0.0
    monkeypatch.setattr(rungs.time, "perf_counter", lambda: now)
    for seconds in (logged, plain):
        for unit in range(rungs.UNITS):
            assert rung.phase == ("trial" if seconds == logged else "plain")
            now += seconds / 100 * (50 if unit in (1, 9) else 1)  # the first ones, and a validation
            rung.note_unit()


@pytest.mark.parametrize(
    ("before", "logged", "phase"),
    [
        (None, 1.04, "awaiting"),
        (None, 1.06, "inputs"),
        (0.5, 1.045, "inputs"),
        (0.5, 1.03, "awaiting"),
        (0.02, 1.045, "awaiting"),
    ],
)
def test_the_medians_decide_and_a_rise_needs_some_room(
    before: float | None, logged: float, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung = MeasuredRung(0.05)
    rung.cost = before
    run_through(rung, monkeypatch, logged, 1.0)
    assert rung.phase == phase
    assert rung.cost == pytest.approx(logged - 1.0)
    assert rung.logs_tensors is False, "not before the next checkpoint"
    assert rung.note_checkpoint() is (phase == "awaiting")
    assert rung.logs_tensors is (phase == "awaiting")


def test_trials_come_with_a_checkpoint_and_become_rare_where_they_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1000.0
    monkeypatch.setattr(rungs.time, "monotonic", lambda: clock)
    rung, waits = MeasuredRung(0.05), list[float]()
    for _ in range(6):
        run_through(rung, monkeypatch, 2.0, 1.0)
        waited = 0.0
        while not rung.note_checkpoint():
            clock, waited = clock + 10.0, waited + 10.0
        waits.append(waited)
        assert rung.phase == "trial"
    assert waits == [120.0, 240.0, 480.0, 600.0, 600.0, 600.0]
    run_through(rung, monkeypatch, 1.01, 1.0)
    assert rung.note_checkpoint()
    assert (rung.phase, rung.logs_tensors) == ("gradients", True)
    clock += 299.0
    assert (rung.note_checkpoint(), rung.phase) == (False, "gradients")
    clock += 1.0
    assert (rung.note_checkpoint(), rung.phase, rung.logs_tensors) == (False, "trial", True)
    rung.settle()
    run_through_nothing = rung.note_unit()
    assert (run_through_nothing, rung.phase) == (False, "gradients")


def test_ranks_follow_what_the_first_one_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each changes where all of them ask each other, whatever it measures itself."""
    clocks, rank = [1000.0] * 3, 0
    monkeypatch.setattr(rungs.time, "perf_counter", lambda: clocks[rank])
    ranks = [FollowedRung(0.05, is_leader=rank == 0) for rank in range(3)]
    phases = list[str]()
    for unit in range(1, 81):
        for rank, rung in enumerate(ranks):
            clocks[rank] += (0.104, 0.2, 0.1)[rank] if rung.phase == "trial" else 0.1
            assert rung.note_unit() is False
        if unit % 10 == 0:
            proposal, is_checkpoint = ranks[0].propose(), unit == 80
            assert len({rung.follow(proposal, is_checkpoint=is_checkpoint) for rung in ranks}) == 1
            assert len({(rung.phase, rung.logs_tensors, rung.cost) for rung in ranks}) == 1
            phases.append(ranks[0].phase)
    assert phases == ["trial", "trial", "plain", "plain", "plain", "awaiting", "awaiting", "gradients"]
    late = FollowedRung(0.05, is_leader=False)
    late.begin_as(ranks[0].propose())
    assert late.phase == "gradients"


def test_long_units_are_tried_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(rungs.time, "perf_counter", lambda: now)
    rung, phases = MeasuredRung(0.05), list[str]()
    for seconds in [5.1] * 8 + [5.0] * 8:
        phases.append(rung.phase)
        now += seconds
        rung.note_unit()
    assert phases == ["trial"] * 8 + ["plain"] * 8
    assert (rung.phase, rung.cost) == ("awaiting", pytest.approx(0.02))


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), (" 0.5 %", 0.005), (0.1, 0.1), ("99%", 0.99)])
def test_an_overhead_is_a_share(text: Any, share: float) -> None:
    assert parse_overhead(text) == pytest.approx(share)


@pytest.mark.parametrize("wrong", ["200%", "0%", 0, 1, -0.1, "5", "five%", True])
def test_another_overhead_is_refused(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="overhead must be a share of a step above 0 and below 100 %"):
        LoggedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]), tmp_path / "run", log="auto", overhead=wrong)


@pytest.mark.crash
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("ticks", "script", "cost", "checkpoint_every"),
    campaign.each_once(
        [(2, 3, 4), (8, 2, 2), (5, 6), (12,), (10, 2), ()],
        [scripts.epochs, scripts.batches, scripts.mixed_precision, scripts.averaged],
        [0.0, 0.0, 1.0],
        [4, 9, 1000, 9, 1000, 4],
    ),
)
def test_a_kill_in_any_phase_leaves_no_trace(
    ticks: tuple[int, ...],
    script: scripts.Script,
    cost: float,
    checkpoint_every: int,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shorten_trials(cost, monkeypatch.setattr)
    options: dict[str, Any] = {"log": "auto", "checkpoint_every": checkpoint_every}
    run, right = tmp_path / "run", uninterrupted(script)
    for tick in ticks:
        status = in_child(lambda tick=tick: script(Attempt(run, tick, **options)))
        assert status == -signal.SIGKILL, f"the child was to die at tick {tick}; its exit status is {status}"
    last = Attempt(run, **options)
    script(last)
    assert not (found := differences(last.outcome(), right.outcome())), found
    report = last.final_report()
    is_unproven = any("no unit is computed again" in note for note in report.notes)  # right behind a checkpoint
    assert report.exact is (None if is_unproven else True), report
    said = capfd.readouterr().err
    assert ("no tensors are logged" if cost else "they are logged from the next checkpoint on") in said


@pytest.mark.crash
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("ticks", "left_after"), [((10,), 8), ((11, 3), 60)], ids=str)
def test_steps_outside_draw_what_they_drew(ticks: tuple[int, ...], left_after: int, tmp_path: Path) -> None:
    """The first one is found out in its middle, when it has drawn: its loop's end, or a break, is where a resume begins."""

    def script(attempt: Attempt) -> None:
        model, optimizer, _ = scripts.begin(attempt)
        state = optimizer.remember(done=0)
        attempt.start(optimizer)
        rows, values = torch.arange(60.0).reshape(10, 6), torch.arange(10.0).reshape(10, 1)

        def step() -> None:
            chosen = torch.randint(10, (4,))
            scripts.step(attempt, model, optimizer, (rows[chosen] / 60, values[chosen]))

        for turn in optimizer.steps(9, stateless=True):
            step()
            if turn == left_after:
                break
        while state.done < 12:
            step()
            state.done += 1
        attempt.keep(model=model, optimizer=optimizer)
        optimizer.close()

    options: dict[str, Any] = {"overhead": 1e-9, "checkpoint_every": 1000}
    whole = Attempt(tmp_path / "whole", log="gradients")
    script(whole)
    for tick in ticks:
        assert in_child(lambda tick=tick: script(Attempt(tmp_path / "killed", tick, **options))) == -signal.SIGKILL
    last = Attempt(tmp_path / "killed", **options)
    script(last)
    assert not (found := differences(last.outcome(), whole.outcome())), found
    assert last.final_report().exact is not False


@pytest.mark.crash
@pytest.mark.usefixtures("short")
def test_a_job_that_is_killed_soon_after_each_start_comes_to_its_end(tmp_path: Path) -> None:
    """Before a checkpoint is due, a life has to compute the one before again: what it has computed is kept."""
    options: dict[str, Any] = {"overhead": 1e-9, "checkpoint_every": 1000}
    reached = []
    for _ in range(20):
        status = in_child(lambda: scripts.batches(Attempt(tmp_path / "run", 9, **options)))
        reached.append(read_catalog(tmp_path / "run" / "rank0").watermarks.committed)
        if status != -signal.SIGKILL:
            break
    assert status == 0, reached


@pytest.mark.crash
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("is_repeatable", [True, False])
def test_gradients_are_logged_where_a_loop_does_not_repeat_itself(
    is_repeatable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that is the arithmetic's fault, the bound on what they cost holds."""
    monkeypatch.setattr(MeasuredRung, "is_repeatable", is_repeatable)
    shorten_trials(1.0, monkeypatch.setattr)

    def noisy(attempt: Attempt) -> None:
        model, optimizer, loader = scripts.begin(attempt)
        attempt.start(optimizer)
        for batch in optimizer.batches(loader, until=40):
            (scripts.loss(model, batch) * float(os.getpid())).backward()
            attempt.tick()
            optimizer.step()
            optimizer.zero_grad()
        attempt.keep(optimizer=optimizer)
        optimizer.close()

    options: dict[str, Any] = {"log": "auto", "overhead": 1e-9, "checkpoint_every": 1000}
    run = tmp_path / "run"
    assert in_child(lambda: noisy(Attempt(run, 20, **options))) == -signal.SIGKILL
    assert in_child(lambda: noisy(Attempt(run, 20, **options))) == -signal.SIGKILL
    last = Attempt(run, **options)
    noisy(last)
    replayed, landed = last.reports[0].replayed, last.reports[0].step
    if is_repeatable:
        assert replayed > 5, "what the second process computed behind the difference was logged with gradients"
    else:
        assert replayed <= 3 < landed, "the second process took a checkpoint there, and then only tried gradients"
        assert any("torch.use_deterministic_algorithms" in note for note in last.final_report().notes)
    assert last.final_report().exact is False
