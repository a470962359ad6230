"""Batches that follow a crash are those that would have followed without it, or it is named why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.keras.lab import Lab
from tests.keras.proof import Place, demand_deviation, prove_exact, run_killed
from tests.support import campaign

pytestmark = pytest.mark.crash


def test_a_pipeline_of_tf_data_goes_on_with_the_right_batches(tensorflow: Lab) -> None:
    """Left at any of many places; finite ones in passes that follow, too, endless ones around each beginning of the data."""
    assert tensorflow.value("pipelines.all_wrong_places") == {}


def test_a_pipeline_that_cannot_be_brought_back_is_named(tensorflow: Lab) -> None:
    words = {
        "unseeded": "has no seed",
        "unordered": "in which threads finish",
        "unordered interleave": "in which threads finish",
        "unordered map": "in which threads finish",
        "layer": "writes variables, such as the seed of a Keras layer",
        "python": "calls Python",
        "random in parallel": "draws random numbers in parallel",
    }
    found = tensorflow.value("pipelines.doubts")
    assert found.keys() == words.keys()
    assert {name: said for name, said in found.items() if words[name] not in said} == {}


@pytest.mark.parametrize(
    ("backend", "batches", "executions"),
    [("tensorflow", 15, 4), campaign.in_soak("jax", 7, 1), campaign.in_soak("jax", 31, 8)],
    indirect=["backend"],
)
def test_the_attempt_that_finds_the_data_at_their_end_is_no_step(
    backend: Lab, batches: int, executions: int, tmp_path: Path
) -> None:
    """Another rate, which a callback sets there, is no write of the step; only computed steps count."""
    place = -(-batches // executions) + 2
    about = {"batches": batches, "executions": executions}
    last = prove_exact(backend, "fits:of_unknown_length", tmp_path, [["batch", place]], **about)
    assert last.printed == [str(3 * batches)]


def test_validation_on_some_of_the_arrays_comes_back(torch: Lab, tmp_path: Path) -> None:
    prove_exact(torch, "fits:validated", tmp_path, [["batch", 12]], kind="some of the arrays")


@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        ("torch", "shared"),
        ("torch", "generator"),
        *(campaign.in_soak("torch", kind) for kind in ("own", "global")),
        *(campaign.in_soak(backend, kind) for backend in ("tensorflow", "jax") for kind in ("shared", "global", "generator")),
    ],
    indirect=["backend"],
)
def test_a_python_generator_as_validation_data_is_named(kind: str, backend: Lab, tmp_path: Path) -> None:
    """One that shares a random state with the training data, one that goes on at the resume, one that comes back by itself."""
    right, resumed = run_killed(backend, "fits:validated", tmp_path, [["batch", 15]], kind=kind)
    if kind == "shared":  # numpy's own state is in the boundary: what differs depends on how far a backend reads ahead
        demand_deviation(resumed)
    else:
        assert resumed.exact is None
    if kind != "global":
        assert (right.of("history") == resumed.of("history")) is (kind == "own")
    for found in (right, resumed):
        assert any("from a Python generator" in note for note in found.notes), found.notes


def test_on_jax_a_batch_is_made_while_the_step_before_is_computed(jax: Lab, tmp_path: Path) -> None:
    found = jax.value("inside.made_ahead", run=str(tmp_path / "run"))
    assert found[:5] == ["made", "made", "end", "made", "end"]


def test_each_pass_of_a_loop_reads_its_arrays_as_they_are_now(torch: Lab) -> None:
    assert torch.value("inside.passes_over_changed_arrays") == [sum(range(12)), sum(range(12)) + 12 * 100]


@pytest.mark.parametrize(
    ("backend", "kind", "places"),
    [
        ("torch", "PyDataset", [["boundary.after", 9]]),
        ("torch", "DataLoader", [["batch", 10], ["batch", 8]]),
        ("torch", "tf.data", [["batch", 21]]),
        *(campaign.in_soak(backend, "tf.data", [["boundary.after", 10]]) for backend in ("tensorflow", "jax")),
    ],
    indirect=["backend"],
)
def test_a_data_set_that_shuffles_goes_on_from_fit_to_fit(backend: Lab, kind: str, places: list[Place], tmp_path: Path) -> None:
    """The first kill is behind the first fit, which then trains nothing: it takes its passes all the same."""
    prove_exact(backend, "fits:shared_data", tmp_path, places, kind=kind)
