"""Fits that log no tensors: after a crash the fit computes the batches since the last checkpoint again, and compares them."""

from __future__ import annotations

import itertools
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
PLACES: list[Place] = [["batch", 13], ["batch", 3]]  # in the gate the second one on torch only, where a life takes a second


@pytest.mark.parametrize(
    ("backend", "arguments"),
    [
        ("torch", {"data": "arrays", "model": "cnn", "optimizer": "adam-schedule", "validation": True, "beside": ["counting"]}),
        ("torch", {"data": "generator", "model": "global-noise"}),
        ("tensorflow", {"data": "arrays", "model": "line", "validation": True, "beside": ["plateau", "clamp"]}),
        ("jax", {"data": "arrays", "compiled": {"jit_compile": True}}),
        campaign.in_soak("torch", {"data": "numbered-augmented"}),
        campaign.in_soak("torch", {"data": "dataset"}),
        campaign.in_soak("tensorflow", {"data": "dataset-repeat", "model": "line", "epochs": 5}),
        campaign.in_soak("tensorflow", {"compiled": {"run_eagerly": True}}),
        campaign.in_soak("jax", {"data": "generator", "compiled": {"jit_compile": True}}),
    ],
    indirect=["backend"],
    ids=str,
)
def test_killed_fits_end_with_the_bits_of_their_twins(backend: Lab, arguments: dict[str, Any], tmp_path: Path) -> None:
    places = PLACES[: 2 if backend.backend == "torch" or campaign.is_soak() else 1]
    last = prove_exact(backend, "fits:fit", tmp_path, places, expected=EXPECTED, **arguments, options=OPTIONS)
    assert last.exact is not False


@pytest.mark.parametrize(
    ("backend", "script", "places"),
    [
        ("torch", "many_callbacks", [["before", 2], ["recovery.restored", 1], ["after", 1]]),
        campaign.in_soak("tensorflow", "custom_layers", [["boundary.after", 3], ["before", 1]]),
    ],
    indirect=["backend"],
)
def test_killed_scripts_end_as_those_that_nobody_killed(backend: Lab, script: str, places: list[Place], tmp_path: Path) -> None:
    name, launcher = f"tests.public.keras.scripts.{script}:train", Server(backend)
    whole = finish(name, tmp_path / "whole", tmp_path / "whole" / "run", launcher=launcher, **OPTIONS)
    deaths = [Death(place, number=number) for place, number in places]
    prove_deaths(name, tmp_path / "killed", whole, deaths, EXPECTED, launcher=launcher, **OPTIONS)


@pytest.mark.parametrize("cost", [0.0, 1.0])
@pytest.mark.parametrize(
    ("backend", "arguments"),
    [
        ("torch", {"model": "cnn", "optimizer": "adam-schedule", "validation": True, "beside": ["counting"]}),
        ("tensorflow", {"model": "line", "validation": True, "beside": ["plateau", "clamp"]}),
        ("jax", {"compiled": {"jit_compile": True}}),
        campaign.in_soak("torch", {"data": "generator", "model": "global-noise"}),
        campaign.in_soak("tensorflow", {"compiled": {"run_eagerly": True}}),
        campaign.in_soak("tensorflow", {"compiled": {"jit_compile": True}}),
    ],
    indirect=["backend"],
    ids=str,
)
def test_a_kill_in_any_phase_of_a_trial_leaves_no_trace(
    backend: Lab, arguments: dict[str, Any], cost: float, tmp_path: Path
) -> None:
    options = {"overhead": "5%", "checkpoint_every": 9}
    places: list[Place] = [["batch", 2], ["batch", 3], ["batch", 5], ["before", 1], ["batch", 11]]
    prove_exact(backend, "fits:fit", tmp_path, places, expected=EXPECTED, **arguments, options=options, cost=cost)


# Loops of one's own.

LOOPS: list[tuple[str, dict[str, Any], list[Place]]] = [
    ("torch_guide", {}, [["batch", 8], ["epoch", 1], ["batch", 3]]),
    ("count", {"how": "run"}, [["step", 9], ["step", 3]]),
    ("turns", {"how": "tracked"}, [["step", 6], ["step", 4]]),
    ("sequence", {}, [["step", 8], ["between", 1], ["step", 3]]),
    ("left", {"limit": 5}, [["step", 7], ["step", 2]]),
    ("outside", {}, [["step", 9], ["step", 4]]),
    ("outside", {"left": 4}, [["step", 7], ["step", 2]]),
]
LOGS: list[dict[str, Any]] = [
    {"log": "auto", "overhead": "5%", "checkpoint_every": 3, "cost": 1.0},
    {"log": "inputs", "checkpoint_every": 1000},
    {"log": "auto", "overhead": "5%", "checkpoint_every": 3, "cost": 0.0},
    {"log": "auto", "overhead": "5%", "checkpoint_every": 1000, "cost": 1.0},
]


@pytest.mark.parametrize(("loop", "logged"), campaign.each_once(LOOPS, LOGS), ids=str)
def test_a_killed_loop_ends_with_the_bits_of_one_that_logs_gradients(
    loop: tuple[str, dict[str, Any], list[Place]], logged: dict[str, Any], torch: Lab, tmp_path: Path
) -> None:
    script, arguments, places = loop
    if script == "outside" and logged["log"] == "inputs":
        status, said = end(torch, "loops:outside", tmp_path, logged=logged)
        assert status == 1
        assert "taken outside of batches(), epochs() and steps()" in said
        return
    prove_exact(torch, f"loops:{script}", tmp_path, places, expected=EXPECTED, logged=logged, **arguments)


@pytest.mark.parametrize(
    ("script", "logged"),
    [("compiled", LOGS[0]), *(campaign.in_soak(*one) for one in itertools.product(("guide", "gan"), LOGS))],
)
def test_a_killed_loop_of_compiled_steps_does(script: str, logged: dict[str, Any], tensorflow: Lab, tmp_path: Path) -> None:
    prove_exact(tensorflow, f"loops:{script}", tmp_path, [["batch", 8]], expected=EXPECTED, logged=logged)


def test_a_loop_that_does_not_repeat_itself_is_named_and_logs_gradients_from_then_on(torch: Lab, tmp_path: Path) -> None:
    logged = {"log": "auto", "overhead": "5%", "checkpoint_every": 1000, "cost": 1.0}
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
