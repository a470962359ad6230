"""Many fits of one model, `compile` between fits and within one, and a script with a resume of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.keras.lab import Lab
from tests.public.keras.proof import prove_exact

SCRIPT = "tests.public.keras.several_fits"


@pytest.mark.crash
@pytest.mark.parametrize("backend", ["tensorflow", "jax"], indirect=True)
def test_what_one_fit_has_compiled_the_next_one_uses(backend: Lab, tmp_path: Path) -> None:
    traced = backend.value(f"{SCRIPT}.many", run=str(tmp_path / "alone"), die=None)["traced"]
    assert [bool(count) for count in traced[2:]] == [False, False, True, False], "another rate of dropout is traced, once"
    prove_exact(backend, f"{SCRIPT}.many", tmp_path, [["batch", 6], ["batch", 4]])


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("compile", "model.compile was called while fit runs"),
        ("batch", "model.compile was called while fit runs"),
        ("function", "model.make_train_function(force=True) was called while fit runs"),
        ("optimizer", "model.optimizer was replaced while fit runs"),
    ],
)
def test_another_way_of_training_within_a_fit_is_refused_at_once(how: str, name: str, torch: Lab, tmp_path: Path) -> None:
    found = torch.value(f"{SCRIPT}.compiled_within", run=str(tmp_path), how=how, log="weights" if how == "batch" else "auto")
    assert name in found["said"]
    assert "Write two fits, and compile between them" in found["said"]
    assert found["steps"] == 4, "a refusal must leave the model usable"


@pytest.mark.crash
def test_a_sequential_model_that_the_script_has_loaded_is_recognized(torch: Lab, tmp_path: Path) -> None:
    prove_exact(torch, f"{SCRIPT}.loading", tmp_path, [["batch", 6]])
