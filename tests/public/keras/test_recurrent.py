"""Stateful recurrent layers come back with their states and their dropout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.keras.lab import Lab
from tests.public.keras.proof import prove_exact, resume_killed
from tests.support import campaign

SCRIPT = "tests.public.keras.recurrent:train"


@pytest.mark.sampled(1)
@pytest.mark.crash
@pytest.mark.parametrize(
    ("resets", "backend"), campaign.each_once([True, False], ["tensorflow", "torch"]), indirect=["backend"]
)
def test_stateful_layers_come_back(resets: bool, backend: Lab, tmp_path: Path) -> None:
    """Killed in the middle of an epoch, and where one ends. Two layers compile for long on TensorFlow."""
    is_all = backend.backend == "torch" or campaign.is_soak()
    prove_exact(backend, SCRIPT, tmp_path, [["batch", 9], ["before", 1]][: 1 + is_all], resets=resets, deep=is_all)


@pytest.mark.sampled(0)
@pytest.mark.crash
@pytest.mark.parametrize(("resets", "jit"), [(True, True), campaign.in_soak(False, False)])
def test_states_on_jax_come_back(resets: bool, jit: bool, jax: Lab, tmp_path: Path) -> None:
    """A step does not write them there. Reset states are what a compiled step was traced with; other steps read them anew."""
    prove_exact(jax, SCRIPT, tmp_path, [["batch", 8]], resets=resets, looks=not resets, deep=False, jit=jit, epochs=2)


@pytest.mark.sampled(0)
@pytest.mark.crash
def test_states_that_a_compiled_step_on_jax_was_not_traced_with_are_named(jax: Lab, tmp_path: Path) -> None:
    resumed = resume_killed(jax, SCRIPT, tmp_path, [["batch", 8]], resets=False, looks=True, deep=False, jit=True, epochs=2)
    assert resumed.exact is False
    assert any("has the states of stateful recurrent layers as constants" in note for note in resumed.notes), resumed["notes"]
