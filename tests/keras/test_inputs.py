"""Fits that log no tensors: after a crash the fit computes the batches since the last checkpoint again, and compares them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab
from tests.keras.proof import Place, end, kill, prove_exact, run_whole
from tests.kills.job import Death
from tests.kills.judge import Expected, finish, prove_deaths
from tests.kills.launchers import Server
from tests.support import campaign
from tranlogs.training.recheck_messages import NOTHING_RECORDED

pytestmark = pytest.mark.crash

OPTIONS = {"log": "inputs", "checkpoint_every": "epoch"}
EXPECTED = Expected(unproven=NOTHING_RECORDED)


@pytest.mark.parametrize(
    ("backend", "arguments"),
    [
        ("torch", {"data": "arrays", "model": "cnn", "optimizer": "adam-schedule", "validation": True, "beside": ["counting"]}),
        ("torch", {"data": "generator", "model": "global-noise"}),
        campaign.in_soak("tensorflow", {"model": "line", "validation": True, "beside": ["plateau", "clamp"]}),
        campaign.in_soak("torch", {"data": "dataset"}),
        campaign.in_soak("tensorflow", {"data": "dataset-repeat", "model": "line", "epochs": 5}),
        campaign.in_soak("tensorflow", {"compiled": {"run_eagerly": True}}),
        campaign.in_soak("jax", {"data": "generator", "compiled": {"jit_compile": True}}),
    ],
    indirect=["backend"],
    ids=str,
)
def test_killed_fits_end_with_the_bits_of_their_twins(backend: Lab, arguments: dict[str, Any], tmp_path: Path) -> None:
    places: list[Place] = [["batch", 13], ["batch", 3]][: 2 if backend.backend == "torch" else 1]
    last = prove_exact(backend, "fits:fit", tmp_path, places, expected=EXPECTED, **arguments, options=OPTIONS)
    assert last.exact is not False


def test_a_killed_script_with_many_callbacks_ends_as_one_that_nobody_killed(torch: Lab, tmp_path: Path) -> None:
    script: dict[str, Any] = {"script": "tests.public.keras.scripts.many_callbacks:train", "launcher": Server(torch)}
    whole = finish(folder=tmp_path / "whole", run=tmp_path / "whole" / "run", **script, **OPTIONS)
    deaths = [Death(place) for place in ("before", "recovery.restored", "after")]
    prove_deaths(folder=tmp_path / "killed", right=whole, deaths=deaths, expected=EXPECTED, **script, **OPTIONS)


@pytest.mark.parametrize(
    ("backend", "cost", "arguments"),
    [
        *(("torch", cost, {"model": "cnn", "validation": True, "beside": ["counting"]}) for cost in (0.0, 1.0)),
        *(campaign.in_soak("tensorflow", cost, {"model": "line", "validation": True}) for cost in (0.0, 1.0)),
        *(campaign.in_soak("jax", cost, {"compiled": {"jit_compile": True}}) for cost in (0.0, 1.0)),
    ],
    indirect=["backend"],
    ids=str,
)
def test_a_kill_in_any_phase_of_a_trial_leaves_no_trace(
    backend: Lab, cost: float, arguments: dict[str, Any], tmp_path: Path
) -> None:
    options = {"overhead": "5%", "checkpoint_every": 9}
    places: list[Place] = [["batch", 2], ["batch", 3], ["batch", 5], *([["before", 1]] if "validation" in arguments else [])]
    prove_exact(backend, "fits:fit", tmp_path, places, expected=EXPECTED, **arguments, options=options, cost=cost)


# Loops of one's own.

AUTO: dict[str, Any] = {"log": "auto", "overhead": "5%", "checkpoint_every": 3}


@pytest.mark.parametrize(
    ("script", "arguments", "places", "logged"),
    [
        ("torch_guide", {}, [["batch", 8], ["epoch", 1], ["batch", 3]], AUTO | {"cost": 1.0}),
        ("turns", {"how": "tracked"}, [["step", 6], ["step", 4]], AUTO | {"cost": 0.0}),
        ("sequence", {}, [["step", 8], ["between", 1], ["step", 3]], AUTO | {"checkpoint_every": 1000, "cost": 1.0}),
        ("left", {"limit": 5}, [["step", 7], ["step", 2]], {"log": "inputs", "checkpoint_every": 1000}),
        ("outside", {}, [["step", 7], ["step", 2]], AUTO | {"cost": 0.0}),
    ],
    ids=str,
)
def test_a_killed_loop_ends_with_the_bits_of_one_that_logs_gradients(
    script: str, arguments: dict[str, Any], places: list[Place], logged: dict[str, Any], torch: Lab, tmp_path: Path
) -> None:
    prove_exact(torch, f"loops:{script}", tmp_path, places, expected=EXPECTED, logged=logged, **arguments)


@pytest.mark.soak
def test_a_killed_loop_of_compiled_steps_does(tensorflow: Lab, tmp_path: Path) -> None:
    logged = AUTO | {"cost": 1.0}
    prove_exact(tensorflow, "loops:compiled", tmp_path, [["batch", 8]], expected=EXPECTED, logged=logged)


def test_a_step_outside_of_the_loops_is_refused_where_no_tensors_are_logged(torch: Lab, tmp_path: Path) -> None:
    status, said = end(torch, "loops:outside", tmp_path, logged={"log": "inputs", "checkpoint_every": 1000})
    assert status == 1
    assert "taken outside of batches(), epochs() and steps()" in said


def test_a_loop_that_does_not_repeat_itself_is_named_and_logs_gradients_from_then_on(torch: Lab, tmp_path: Path) -> None:
    logged = AUTO | {"checkpoint_every": 1000, "cost": 1.0}
    kill(torch, "loops:noisy", tmp_path, ["step", 10], logged=logged)
    said = kill(torch, "loops:noisy", tmp_path, ["step", 12], logged=logged)
    assert "were computed again, and at step 6 weights or optimizer state differ" in said
    last = run_whole(torch, "loops:noisy", tmp_path, logged=logged)
    assert last.step >= 9, "what the second process computed behind the difference was logged with gradients"
    assert last.exact is False
    assert any("at step 6 weights or optimizer state differ" in note for note in last.notes), last.notes


def test_a_loop_is_told_what_it_computes_again_and_what_it_changes_before_stands(torch: Lab, tmp_path: Path) -> None:
    logged = {"log": "inputs", "checkpoint_every": 1000, "cost": 0.0}  # with which each boundary is recorded
    kill(torch, "loops:change", tmp_path / "same", ["step", 7], logged=logged)
    shutil.copytree(tmp_path / "same", tmp_path / "other")
    same = run_whole(torch, "loops:change", tmp_path / "same", logged=logged)
    assert (same.printed[-12:], same.exact) == ([*["again"] * 6, *["new"] * 6], True)
    kill(torch, "loops:change", tmp_path / "other", ["step", 4], changes=("rate",), resumes=True, logged=logged)
    other = run_whole(torch, "loops:change", tmp_path / "other", changes=("rate",), resumes=True, logged=logged)
    wanted = run_whole(torch, "loops:change", tmp_path / "twin", is_logged=False, changes=("rate",), at=0)
    assert (other.of("state"), other.exact) == (wanted.of("state"), True), other.notes
