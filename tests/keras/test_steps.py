"""How steps are taken, looked at and redone: one call into the framework, no unnoticed write, train steps of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab
from tests.keras.proof import demand_deviation, prove_exact, resume_killed, run_whole
from tests.support import campaign


def test_a_step_is_one_call_into_tensorflow(tensorflow: Lab, tmp_path: Path) -> None:
    found = tensorflow.value("inside.calls", run=str(tmp_path / "run"))
    assert max(found, key=found.get) == 1, "not one call"
    # The others look: at what the train step writes, and now and then.
    assert found[1] > 0.6 * sum(found.values())
    assert sum(calls * steps for calls, steps in found.items()) <= 3 * sum(found.values())


# Writes.


@pytest.mark.parametrize(
    ("backend", "place", "what"),
    [
        ("torch", "on_train_batch_begin", "weight"),
        ("torch", "on_test_end", "weight"),
        ("torch", "on_epoch_begin", "momentum"),
        ("torch", "on_test_begin", "frozen"),
        ("torch", "on_train_batch_end", "gradient"),  # used: it changes no record
        campaign.in_soak("tensorflow", "on_batch_begin", "momentum"),
        *(campaign.in_soak("tensorflow", "on_train_batch_end", what) for what in ("weight", "rate", "frozen")),
        *(campaign.in_soak("tensorflow", place, "weight") for place in ("on_train_begin", "on_epoch_begin", "on_epoch_end")),
        *(campaign.in_soak("jax", place, "weight") for place in ("on_train_batch_begin", "on_batch_end", "on_test_end")),
        campaign.in_soak("torch", "on_train_batch_begin", "gradient"),
    ],
    indirect=["backend"],
)
def test_a_write_at_any_place_is_noticed(backend: Lab, place: str, what: str, tmp_path: Path) -> None:
    found = backend.value("inside.written_at", folder=str(tmp_path), place=place, what=what)
    assert (found["different"], found["exact"]) == ([], True), found
    assert found["replayed"] == found["step"] == 13


def test_a_write_behind_data_of_unknown_length_is_noticed(tensorflow: Lab, tmp_path: Path) -> None:
    """There the end of the data is found by a step that fails."""
    about = {"place": "on_epoch_end", "what": "weight", "data": "dataset-python"}
    found = tensorflow.value("inside.written_at", folder=str(tmp_path), **about)
    assert (found["different"], found["exact"]) == ([], True), found


def test_a_write_of_nobody_is_told_and_followed_by_a_checkpoint(tensorflow: Lab, tmp_path: Path) -> None:
    found = tensorflow.value("inside.written_by_nobody", folder=str(tmp_path))
    assert "kernel was written between steps by something other than a callback of this fit" in found["said"]
    assert (found["different"], found["exact"]) == ([], True)


def test_an_update_that_is_another_within_a_step_is_called_apart(tensorflow: Lab, tmp_path: Path) -> None:
    found = tensorflow.value("inside.inexact_in_one_call", folder=str(tmp_path))
    assert found["wholes"] == 2, "one step in each process that began a run: the one in which it shows; a resumed run must know"
    assert (found["different"], found["exact"]) == ([], True), found
    assert found["replayed"] > 0


# Train steps and optimizers of which gradients do not tell everything.


@pytest.mark.crash
@pytest.mark.parametrize(
    ("backend", "style"),
    [("torch", "wgan"), ("torch", "warmed-up"), campaign.in_soak("tensorflow", "wgan"), campaign.in_soak("jax", "named")],
    indirect=["backend"],
)
def test_a_train_step_of_ones_own_comes_back(backend: Lab, style: str, tmp_path: Path) -> None:
    """Killed with the sixth step, and at the end of an epoch, whose logs are those that the step had reported."""
    # The rehearsal of the step leaves no trace: the twin.
    about: dict[str, Any] = {"warns": ("weights are logged, not gradients",), "with_twin": backend.backend == "torch"}
    prove_exact(backend, "fits:own_step", tmp_path, [["batch", 5], ["before", 1]], style=style, **about)


def test_an_optimizer_that_gradients_do_not_tell_everything_of_falls_back_to_weights(torch: Lab, tmp_path: Path) -> None:
    found = torch.value("inside.noisy_optimizer", folder=str(tmp_path))
    assert "weights are logged from step 1 on" in found["said"]
    assert (found["different"], found["exact"]) == ([], True)


@pytest.mark.crash
@pytest.mark.parametrize(
    ("model", "step"),
    [("late", 7), ("spectral", 1)],
)
def test_a_layer_that_writes_its_weights_falls_back_to_weights_and_is_named_once(
    model: str, step: int, torch: Lab, tmp_path: Path
) -> None:
    """Late: at the tenth call; Keras calls the layer three times to build the model, and calls begin anew in each process."""
    whole = run_whole(torch, "fits:fit", tmp_path / "whole", model=model)
    (said,) = [text for text in whole.heard.warnings if "weights are logged" in text]
    assert f"weights are logged from step {step} on, not gradients: train_step writes" in said
    if model == "spectral":
        resumed = resume_killed(torch, "fits:fit", tmp_path, [["batch", 13]], model=model)
        assert (resumed.exact, resumed.of("model")) == (True, whole.of("model"))


# Random numbers and states of layers.


@pytest.mark.soak
@pytest.mark.crash
def test_random_numbers_of_the_runtime_that_follow_from_the_global_seed_come_back(tensorflow: Lab, tmp_path: Path) -> None:
    prove_exact(tensorflow, "fits:noisy", tmp_path, [["batch", 8]], eager=True)


@pytest.mark.crash
@pytest.mark.parametrize(("is_seeded", "eager"), [(False, False), campaign.in_soak(True, True)])
def test_random_numbers_of_the_runtime_are_named(is_seeded: bool, eager: bool, tensorflow: Lab, tmp_path: Path) -> None:
    resumed = resume_killed(tensorflow, "fits:noisy", tmp_path, [["batch", 8]], is_seeded=is_seeded, eager=eager)
    assert eager or any("by tf.random (RandomStandardNormal)" in note for note in resumed.notes), resumed.notes
    assert resumed.exact is False  # found by the proof


@pytest.mark.crash
@pytest.mark.parametrize(
    ("backend", "about"),
    [
        ("torch", {"resets": False}),
        campaign.in_soak("tensorflow", {"resets": True}),
        # A step does not write them on JAX. Reset states are what a compiled step was traced with; other steps read them anew.
        campaign.in_soak("jax", {"resets": True, "jit": True}),
        campaign.in_soak("jax", {"resets": False, "jit": False}),
    ],
    indirect=["backend"],
    ids=str,
)
def test_stateful_recurrent_layers_come_back(backend: Lab, about: dict[str, Any], tmp_path: Path) -> None:
    prove_exact(backend, "fits:recurrent", tmp_path, [["before", 1]] if backend.backend == "torch" else [["batch", 8]], **about)


@pytest.mark.soak
@pytest.mark.crash
def test_states_that_a_compiled_step_on_jax_was_not_traced_with_are_named(jax: Lab, tmp_path: Path) -> None:
    resumed = resume_killed(jax, "fits:recurrent", tmp_path, [["batch", 8]], resets=False, jit=True)
    demand_deviation(resumed)


# Redone steps give the bits of the steps that were taken: every optimizer, in every way in which Keras compiles a step.

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
    ("tensorflow", ["lion"], {"model": "line"}),
    campaign.in_soak("tensorflow", ALL, {"model": "line"}),
    campaign.in_soak("tensorflow", HARD, {"model": "dense"} | XLA),
    campaign.in_soak("jax", HARD, {"model": "dense"} | XLA),
    # A model that a compiler would fuse with its update.
    campaign.in_soak("tensorflow", ["adam", "lion"], {"model": "fusing"} | XLA),
    campaign.in_soak("jax", ["adam", "lion"], {"model": "fusing"} | XLA),
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
