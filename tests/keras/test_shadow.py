"""Derived checkpoints of Keras runs: the callback's own bytes, or a refusal in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab

EVERY_STEP = {"checkpoint_every": 1, "keep": 100, "fingerprint": "full"}
KILLED: dict[str, Any] = {"die": ["batch", 13], "behind_checkpoint": True, "options": EVERY_STEP}


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("torch", {}),
        ("torch", {"optimizer": "adam-schedule", "data": "arrays", "options": {**EVERY_STEP, "log": "weights"}}),
        ("jax", {"jit": True, "model": "dense", "optimizer": "adam"}),
        ("tensorflow", {"model": "dense"}),
    ],
    indirect=["backend"],
)
def test_it_has_the_bytes_of_the_callbacks_own(backend: Lab, options: dict[str, Any], tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    assert backend.run("fit", run=run, **(KILLED | options)).was_killed
    assert backend.value("shadow", run=run) == {"state.safetensors": True, "meta.bin": True, "manifest.json": True}


def test_the_place_of_a_tf_dataset_is_not_known_without_the_script(tensorflow: Lab, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    assert tensorflow.run("fit", run=run, data="dataset", model="line", **KILLED).was_killed
    ended = tensorflow.run("shadow", run=run)
    assert ended.code != 0
    assert "its checkpoints hold the place of a tf.data iterator" in ended.output
