"""Training and validation generators that draw from one random state cannot be taken up again exactly, and are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.keras.lab import Lab
from tests.public.keras.proof import demand_deviation, prove_exact, resume_killed, run_killed
from tests.support import campaign

SCRIPT = "tests.public.keras.generators:train"
REASONS = {"shared": "one random generator (rng)", "global": "random numbers of numpy.random"}


@pytest.mark.crash
@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"], indirect=True)
def test_generators_with_random_states_of_their_own_come_back(backend: Lab, tmp_path: Path) -> None:
    prove_exact(backend, SCRIPT, tmp_path, [["batch", 12]], kind="own")


@pytest.mark.crash
@pytest.mark.parametrize(
    ("backend", "kind"), campaign.each_once(["tensorflow", "torch", "jax"], [*REASONS]), indirect=["backend"]
)
def test_generators_that_share_a_random_state_are_named_before_training(kind: str, backend: Lab, tmp_path: Path) -> None:
    right, resumed = run_killed(backend, SCRIPT, tmp_path, [["batch", 12]], kind=kind)
    if kind == "shared":  # numpy's own state is in the boundary: what differs depends on how far a backend reads ahead
        assert right.of("history") != resumed.of("history")
        demand_deviation(resumed)
    else:
        assert resumed.exact is None
    for found in (right, resumed):
        assert any(REASONS[kind] in note for note in found.notes), found.notes


@pytest.mark.crash
def test_a_random_generator_that_an_object_holds_is_seen(torch: Lab, tmp_path: Path) -> None:
    resumed = resume_killed(torch, SCRIPT, tmp_path, [["batch", 12]], kind="shared by object")
    assert any("one random generator (rng)" in note for note in resumed.notes), resumed.notes
    demand_deviation(resumed)
