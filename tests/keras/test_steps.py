"""How steps are taken and looked at: one call into the framework, and no write that goes unnoticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.keras.lab import Lab
from tests.support import campaign


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
def test_a_step_is_one_call_into_tensorflow(tensorflow: Lab, jit: bool, tmp_path: Path) -> None:
    found = tensorflow.value("scenario.steps.calls", run=str(tmp_path), jit=jit)
    assert max(found, key=found.get) == 1, "not one call"
    if not jit or campaign.is_soak():
        plain = tensorflow.value("scenario.steps.calls", run=None, jit=jit)
        assert min(plain) == 3, "what Keras needs itself: its function, and two to get at what it returns"
    # The others look: at what the train step writes, and now and then.
    assert found[1] > 0.6 * sum(found.values())
    assert sum(calls * steps for calls, steps in found.items()) <= 3 * sum(found.values())


def test_a_callback_that_may_write_costs_one_call_more(tensorflow: Lab, tmp_path: Path) -> None:
    found = tensorflow.value("scenario.steps.calls", run=str(tmp_path), acts=True)
    assert max(found, key=found.get) == 2


PLACES = (
    "on_train_begin",
    "on_epoch_begin",
    "on_train_batch_begin",
    "on_batch_begin",
    "on_train_batch_end",
    "on_batch_end",
    "on_test_begin",
    "on_test_end",
    "on_epoch_end",
)


IN_THE_GATE = {"momentum": ("on_batch_begin", "on_batch_end"), "frozen": ("on_test_begin", "on_epoch_end")}  # weights: the rest


@pytest.mark.sampled(1)
@pytest.mark.parametrize("what", ["weight", campaign.in_soak("rate"), *IN_THE_GATE])
def test_a_write_at_any_place_is_noticed_on_tensorflow(tensorflow: Lab, what: str, tmp_path: Path) -> None:
    others = [place for place in PLACES if place not in sum(IN_THE_GATE.values(), ())]
    places = PLACES if campaign.is_soak() else IN_THE_GATE.get(what, others)
    jobs = {
        place: tensorflow.start("scenario.steps.written_at", folder=str(tmp_path / place), place=place, what=what)
        for place in places
    }
    for place, job in jobs.items():
        ended = job.wait()
        assert ended.code == 0, (place, ended.output[-3000:])
        assert (ended.value["different"], ended.value["exact"]) == ([], True), (place, ended.value)
        assert ended.value["replayed"] == ended.value["step"] == 13, place


@pytest.mark.sampled(1)
@pytest.mark.parametrize("backend", ["torch", "jax"], indirect=True)
def test_a_write_at_any_place_is_noticed(backend: Lab, tmp_path: Path) -> None:
    all_places = ("on_train_batch_begin", "on_test_end", "on_train_batch_end", "on_epoch_begin")
    for place in all_places if backend.backend == "torch" or campaign.is_soak() else all_places[:2]:
        found = backend.value(
            "scenario.steps.written_at", folder=str(tmp_path / place), place=place, what="weight", jit=backend.backend == "jax"
        )
        assert (found["different"], found["exact"]) == ([], True), (place, found)


def test_a_write_to_a_gradient_that_was_used_changes_no_record(torch: Lab, tmp_path: Path) -> None:
    for place in ("on_train_batch_begin", "on_train_batch_end"):
        found = torch.value("scenario.steps.written_at", folder=str(tmp_path / place), place=place, what="gradient")
        assert (found["different"], found["exact"]) == ([], True), (place, found)


def test_a_write_behind_data_of_unknown_length_is_noticed(tensorflow: Lab, tmp_path: Path) -> None:
    """There the end of the data is found by a step that fails."""
    found = tensorflow.value(
        "scenario.steps.written_at", folder=str(tmp_path), place="on_epoch_end", what="weight", data="dataset-python"
    )
    assert (found["different"], found["exact"]) == ([], True), found


def test_a_write_of_nobody_is_told_and_followed_by_a_checkpoint(tensorflow: Lab, tmp_path: Path) -> None:
    found = tensorflow.value("scenario.steps.written_by_nobody", folder=str(tmp_path))
    assert "kernel was written between steps by something other than a callback of this fit" in found["said"]
    assert (found["different"], found["exact"]) == ([], True)


def test_an_update_that_is_another_within_a_step_is_called_apart(tensorflow: Lab, tmp_path: Path) -> None:
    found = tensorflow.value("scenario.steps.inexact_in_one_call", folder=str(tmp_path))
    assert found["wholes_before"] == 2, "one step in each process that began a run: the one in which it shows"
    assert found["wholes_after"] == 0, "a resumed run must know"
    assert found["same"]
    assert found["exact"] is True
    assert found["replayed"] > 0


def test_attributes_of_callbacks_are_compared_to_the_bit(torch: Lab) -> None:
    found = torch.value("scenario.steps.comparisons")
    assert [name for name, is_right in found.items() if not is_right] == []


def test_boundaries_hand_over_what_has_not_changed_as_the_same_part(tensorflow: Lab, tmp_path: Path) -> None:
    found = tensorflow.value("scenario.steps.body_parts", folder=str(tmp_path))
    assert {"data", "seed", "earlier", "source", "rng.python", "rng.numpy"} <= set(found["fixed"])
    assert {"position", "auxiliary", "metrics"} <= set(found["others"])
    assert found["converted"] == ["tests.keras.scenario.steps"], (
        "none of the product's functions, which takes time at each start"
    )
