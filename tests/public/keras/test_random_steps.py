"""Random numbers of a train step: those that a traced one draws by tf.random are named, eager ones come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.keras.lab import Lab
from tests.public.keras.proof import prove_exact, run_killed
from tests.support import campaign

SCRIPT = "tests.public.keras.random_steps:train"
LOGS = ["gradients", "weights"]
OPERATIONS = {"layer": "RandomStandardNormal", "seeded": "RandomStandardNormal", "function": "RandomUniform"}


@pytest.mark.crash
@pytest.mark.parametrize(("kind", "log"), campaign.each_once(["layer", "function"], LOGS))
def test_random_numbers_of_the_runtime_are_named(kind: str, log: str, tensorflow: Lab, tmp_path: Path) -> None:
    right, resumed = run_killed(tensorflow, SCRIPT, tmp_path, [["batch", 8]], kind=kind, log=log)
    assert right.of("model") != resumed.of("model")
    for found in (right, resumed):
        assert any(f"by tf.random ({OPERATIONS[kind]})" in note for note in found.notes), found.notes
    assert resumed.exact is False


@pytest.mark.crash
def test_random_numbers_of_keras_come_back(tensorflow: Lab, tmp_path: Path) -> None:
    prove_exact(tensorflow, SCRIPT, tmp_path, [["batch", 8]], kind="keras", log="gradients")


@pytest.mark.crash
def test_a_callback_that_draws_by_tf_random_comes_back(tensorflow: Lab, tmp_path: Path) -> None:
    prove_exact(tensorflow, SCRIPT, tmp_path, [["batch", 8], ["before", 1]], kind="none", log="gradients")


@pytest.mark.crash
@pytest.mark.parametrize("log", ["gradients", campaign.in_soak("weights")])
def test_eager_random_numbers_that_follow_from_the_global_seed_come_back(log: str, tensorflow: Lab, tmp_path: Path) -> None:
    prove_exact(tensorflow, SCRIPT, tmp_path, [["batch", 8]], kind="layer", log=log, eager=True)


@pytest.mark.crash
@pytest.mark.parametrize(("kind", "log"), campaign.each_once(["seeded", "function"], LOGS))
def test_other_eager_random_numbers_are_named(kind: str, log: str, tensorflow: Lab, tmp_path: Path) -> None:
    right, resumed = run_killed(tensorflow, SCRIPT, tmp_path, [["batch", 8]], kind=kind, log=log, eager=True)
    assert right.of("model") != resumed.of("model")
    for found in (right, resumed):
        assert any(f"by tf.random ({OPERATIONS[kind]})" in note for note in found.notes), found.notes
    assert resumed.exact is False
