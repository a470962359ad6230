"""Redone steps give the bits of the steps that were taken: every optimizer, in every way in which Keras compiles a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab
from tests.support import campaign

ALL = (
    "adam-schedule",
    "adam",
    "sgd",
    "sgd-nesterov-decay",
    "adam-amsgrad",
    "adam-clipnorm",
    "adam-global-clipnorm",
    "adam-clipvalue",
    "adam-accumulate",
    "adam-ema",
    "adam-ema-end",
    "adam-loss-scale",
    "adam-scale-factor",
    "adamw",
    "adamax",
    "nadam",
    "rmsprop-centered",
    "adagrad",
    "adadelta",
    "adafactor",
    "ftrl",
    "lion",
    "lamb",
    "muon",
)
HARD = ("adam-ema", "rmsprop-centered", "lion")  # what was wrong in a single executable  # others were wrong there


def assert_exact(found: dict[str, Any], replayed: int) -> None:
    assert {name: result["different"] for name, result in found.items() if result["different"]} == {}
    assert {name: result["notes"] for name, result in found.items() if result["exact"] is not True} == {}
    assert {result["replayed"] for result in found.values()} == {replayed}


def resumed(lab: Lab, tmp_path: Path, names: tuple[str, ...], **arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = lab.value("resumed", folder=str(tmp_path), names=list(names), **arguments)
    assert list(found) == list(names)
    return found


@pytest.mark.parametrize("names", [ALL[0::3], campaign.in_soak(ALL[1::3]), campaign.in_soak(ALL[2::3])], ids=range(3))
def test_every_optimizer_on_tensorflow(names: tuple[str, ...], tensorflow: Lab, tmp_path: Path) -> None:
    """With a model of one layer, which has a matrix and a vector: each optimizer is compiled twice."""
    assert_exact(resumed(tensorflow, tmp_path, names, model="line", compares=False), replayed=7)


@pytest.mark.sampled(0)
def test_every_optimizer_on_torch(torch: Lab, tmp_path: Path) -> None:
    assert_exact(resumed(torch, tmp_path, ALL, model="dense"), replayed=7)


@pytest.mark.parametrize("backend", ["tensorflow", campaign.in_soak("jax")], indirect=True)
def test_compiled_by_xla(backend: Lab, tmp_path: Path) -> None:
    assert_exact(resumed(backend, tmp_path, HARD, model="dense", jit=True, compares=False), replayed=7)


@pytest.mark.parametrize("backend", [campaign.in_soak("tensorflow"), "jax"], indirect=True)
def test_a_model_that_a_compiler_would_fuse_with_its_update(backend: Lab, tmp_path: Path) -> None:
    assert_exact(resumed(backend, tmp_path, ("adam", "lion"), model="fusing", jit=True, compares=False), replayed=7)


def test_rows_of_an_embedding_and_a_frozen_layer(tensorflow: Lab, tmp_path: Path) -> None:
    names = ("adam", "sgd-nesterov-decay", "adagrad")
    assert_exact(resumed(tensorflow, tmp_path, names, model="sparse", compares=campaign.is_soak()), replayed=7)
    assert_exact(resumed(tensorflow, tmp_path / "eager", names[:1], model="sparse", eager=True), replayed=7)


@pytest.mark.parametrize("backend", ["tensorflow", "torch", campaign.in_soak("jax")], indirect=True)
def test_mixed_precision(backend: Lab, tmp_path: Path) -> None:
    jit = backend.backend == "jax"
    for policy in ("mixed_float16", "bfloat16"):
        compares = not jit and (policy == "mixed_float16" or campaign.is_soak())
        found = resumed(backend, tmp_path / policy, ("adam",), model="dense", policy=policy, jit=jit, compares=compares)
        assert_exact(found, replayed=7)


@pytest.mark.parametrize("backend", ["tensorflow", "torch"], indirect=True)
def test_after_images_of_any_optimizer(backend: Lab, tmp_path: Path) -> None:
    names = ("adam-accumulate", "adam-loss-scale")
    assert_exact(resumed(backend, tmp_path, names, model="line", log="weights"), replayed=7)
