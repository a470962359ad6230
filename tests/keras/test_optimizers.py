"""Redone steps give the bits of the steps that were taken: every optimizer, in every way in which Keras compiles a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab
from tests.support import campaign

# fmt: off
ALL = [
    "adam-schedule", "adam", "sgd", "sgd-nesterov-decay", "adam-amsgrad", "adam-clipnorm", "adam-global-clipnorm",
    "adam-clipvalue", "adam-accumulate", "adam-ema", "adam-ema-end", "adam-loss-scale", "adam-scale-factor", "adamw", "adamax",
    "nadam", "rmsprop-centered", "adagrad", "adadelta", "adafactor", "ftrl", "lion", "lamb", "muon",
]
# fmt: on
HARD = ["adam-ema", "rmsprop-centered", "lion"]  # what was wrong in a single executable
XLA = {"jit_compile": True}

CASES = [
    ("torch", ALL, {"model": "line"}),
    ("tensorflow", HARD, {"model": "line"}),
    campaign.in_soak("tensorflow", ALL, {"model": "line"}),
    campaign.in_soak("tensorflow", HARD, {"model": "dense"} | XLA),
    campaign.in_soak("jax", HARD, {"model": "dense"} | XLA),
    # A model that a compiler would fuse with its update.
    ("jax", ["adam"], {"model": "fusing"} | XLA),
    campaign.in_soak("tensorflow", ["adam", "lion"], {"model": "fusing"} | XLA),
    campaign.in_soak("jax", ["lion"], {"model": "fusing"} | XLA),
    # Rows of an embedding, and a frozen layer.
    ("tensorflow", ["sgd-nesterov-decay"], {"model": "sparse"}),
    campaign.in_soak("tensorflow", ["adam", "adagrad"], {"model": "sparse", "compares": True}),
    campaign.in_soak("tensorflow", ["adam"], {"model": "sparse", "run_eagerly": True, "compares": True}),
    ("torch", ["adam"], {"model": "dense", "policy": "mixed_float16", "compares": True}),
    ("torch", ["adam"], {"model": "dense", "policy": "bfloat16", "compares": True}),
    *(campaign.in_soak("tensorflow", ["adam"], {"model": "dense", "policy": one}) for one in ("mixed_float16", "bfloat16")),
    *(campaign.in_soak("jax", ["adam"], {"model": "dense", "policy": one} | XLA) for one in ("mixed_float16", "bfloat16")),
    # After-images.
    ("torch", ["adam-accumulate", "adam-loss-scale"], {"model": "line", "log": "weights", "compares": True}),
    campaign.in_soak("tensorflow", ["adam-accumulate", "adam-loss-scale"], {"model": "line", "log": "weights"}),
]


@pytest.mark.parametrize(("backend", "names", "arguments"), CASES, indirect=["backend"], ids=str)
def test_redone_steps_are_those_that_were_taken(
    backend: Lab, names: list[str], arguments: dict[str, Any], tmp_path: Path
) -> None:
    found = backend.value("inside.redone", folder=str(tmp_path), names=names, **({"compares": False} | arguments))
    assert list(found) == names
    for name, one in found.items():
        assert (one["different"], one["exact"], one["replayed"]) == ([], True, 7), (name, one)
