"""Train steps of the user's own, with optimizers that only the first step builds, and with one that is never used."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.keras.lab import Lab
from tests.support import campaign

SCRIPT = "tests.public.keras.own_steps.fit"


@pytest.mark.sampled(2)
@pytest.mark.crash
@pytest.mark.parametrize(
    ("backend", "style"),
    [
        *campaign.each_once(["torch", "tensorflow"], ["gan", "wgan", "vq"]),
        ("tensorflow", "ddim"),  # Keras's own fit refuses it on PyTorch
    ],
    indirect=["backend"],
)
def test_a_killed_script_of_the_style_of_keras_io_ends_with_the_right_bits(backend: Lab, style: str, tmp_path: Path) -> None:
    plain = backend.value(SCRIPT, run=None, style=style)
    whole = backend.value(SCRIPT, run=str(tmp_path / "whole"), style=style)
    assert whole["state"] == plain["state"], "the rehearsal of the step must leave no trace"
    assert whole["history"] == plain["history"]
    for die in (4, 5):
        killed = backend.run(SCRIPT, run=str(tmp_path / "killed"), style=style, die=die)
        assert killed.was_killed, killed.output[-3000:]
    resumed = backend.value(SCRIPT, run=str(tmp_path / "killed"), style=style)
    assert resumed["state"] == whole["state"]
    assert resumed["history"] == whole["history"]
    assert resumed["exact"] is True
    assert resumed["step"] == 5, "6 were taken, and one is computed again in each life"


@pytest.mark.crash
def test_an_eager_train_step_is_rehearsed_and_undone(tensorflow: Lab, tmp_path: Path) -> None:
    plain = tensorflow.value(SCRIPT, run=None, style="wgan", eager=True)
    assert tensorflow.run(SCRIPT, run=str(tmp_path), style="wgan", eager=True, die=4).was_killed
    resumed = tensorflow.value(SCRIPT, run=str(tmp_path), style="wgan", eager=True)
    assert resumed["state"] == plain["state"]


@pytest.mark.crash
def test_an_optimizer_that_a_later_step_builds_comes_back(torch: Lab, tmp_path: Path) -> None:
    plain = torch.value(SCRIPT, run=None, style="warmed-up")
    for die in (3, 7, 3):  # before it is built, then behind that
        assert torch.run(SCRIPT, run=str(tmp_path), style="warmed-up", die=die).was_killed
    resumed = torch.value(SCRIPT, run=str(tmp_path), style="warmed-up")
    assert resumed["state"] == plain["state"]
    assert resumed["exact"] is True
