"""Fits that log no tensors: after a crash the fit computes the batches since the last checkpoint again, and compares them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab
from tests.keras.proof import Place, prove_exact
from tests.kills.job import Death
from tests.kills.judge import Expected, finish, prove_deaths
from tests.kills.launchers import Server
from tests.support import campaign
from tranlogs.training import NOTHING_RECORDED

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
