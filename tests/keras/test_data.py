"""Batches that follow a crash are those that would have followed without it, or it is named why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab
from tests.keras.proof import demand_deviation, prove_exact, resume_killed, run_killed
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


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("backend", "batches", "executions"),
    [("jax", 7, 1), ("jax", 15, 1), ("jax", 31, 8), ("tensorflow", 15, 4)],
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


@pytest.mark.sampled(0)
@pytest.mark.parametrize("backend", ["tensorflow", "jax"], indirect=True)
def test_weights_that_are_written_where_the_data_end_are_logged(backend: Lab, tmp_path: Path) -> None:
    about: dict[str, Any] = {"batches": 7, "log": "weights", "shrinks": True}
    prove_exact(backend, "fits:of_unknown_length", tmp_path, [["batch", 9]], **about)


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


@pytest.mark.parametrize("backend", ["torch", campaign.in_soak("tensorflow"), campaign.in_soak("jax")], indirect=True)
def test_each_pass_of_a_loop_reads_its_arrays_as_they_are_now(backend: Lab) -> None:
    assert backend.value("inside.passes_over_changed_arrays") == [sum(range(12)), sum(range(12)) + 12 * 100]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("backend", "kind"),
    [("torch", "PyDataset"), ("torch", "DataLoader"), ("tensorflow", "tf.data"), campaign.in_soak("jax", "tf.data")],
    indirect=["backend"],
)
@pytest.mark.parametrize("place", [["boundary.after", 9], ["boundary.after", 10], ["batch", 10], ["batch", 17], ["batch", 21]])
def test_a_data_set_that_shuffles_goes_on_from_fit_to_fit(backend: Lab, tmp_path: Path, kind: str, place: list[Any]) -> None:
    """The first kill is behind the first fit, which then trains nothing: it takes its passes all the same."""
    prove_exact(backend, "fits:shared_data", tmp_path, [place], kind=kind)


def test_a_data_set_that_comes_to_hold_what_cannot_be_stored_is_named(torch: Lab, tmp_path: Path) -> None:
    found = resume_killed(torch, "fits:fit", tmp_path, [], data="numbered-unstorable")
    assert any("Unstorable.held has changed, and is of a kind that cannot be stored" in note for note in found.notes)
