"""How steps are taken, looked at and redone: one call into the framework, no unnoticed write, train steps of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab
from tests.keras.proof import Place, demand_deviation, prove_exact, resume_killed, run_whole
from tests.support import campaign


@pytest.mark.parametrize("jit", [False, campaign.in_soak(True)], ids=["graph", "xla"])
def test_a_step_is_one_call_into_tensorflow(tensorflow: Lab, jit: bool, tmp_path: Path) -> None:
    found = tensorflow.value("inside.calls", run=str(tmp_path / "run"), jit=jit)
    assert max(found, key=found.get) == 1, "not one call"
    # The others look: at what the train step writes, and now and then.
    assert found[1] > 0.6 * sum(found.values())
    assert sum(calls * steps for calls, steps in found.items()) <= 3 * sum(found.values())
    if campaign.is_soak():
        plain = tensorflow.value("inside.calls", run=None, jit=jit)
        assert min(plain) == 3, "what Keras needs itself: its function, and two to get at what it returns"
        beside = tensorflow.value("inside.calls", run=str(tmp_path / "beside"), acts=True)
        assert max(beside, key=beside.get) == 2, "a callback that may write costs one call more"


# Writes.

PLACES = ("on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_batch_begin", "on_train_batch_end", "on_batch_end")
PLACES += ("on_test_begin", "on_test_end", "on_epoch_end")
SOME = ("on_train_batch_begin", "on_batch_end", "on_test_end")
GATE = [
    *(("torch", place, "weight") for place in ("on_train_batch_begin", "on_test_end")),
    ("torch", "on_epoch_begin", "momentum"),
    ("torch", "on_test_begin", "frozen"),
    ("torch", "on_train_batch_end", "gradient"),  # used: it changes no record
    ("tensorflow", "on_batch_begin", "momentum"),
]


@pytest.mark.parametrize(
    ("backend", "place", "what"),
    [
        *GATE,
        *(
            campaign.in_soak("tensorflow", place, what)
            for place in PLACES
            for what in ("weight", "rate", "momentum", "frozen")
            if ("tensorflow", place, what) not in GATE
        ),
        *(campaign.in_soak("jax", place, "weight") for place in SOME),
        campaign.in_soak("torch", "on_train_batch_begin", "gradient"),
    ],
    indirect=["backend"],
)
def test_a_write_at_any_place_is_noticed(backend: Lab, place: str, what: str, tmp_path: Path) -> None:
    about: dict[str, Any] = {"place": place, "what": what, "jit": backend.backend == "jax"}
    found = backend.value("inside.written_at", folder=str(tmp_path), **about)
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
    [
        *(("torch", style) for style in ("wgan", "warmed-up")),
        campaign.in_soak("tensorflow", "ddim"),  # Keras's own fit refuses it on PyTorch
        *(campaign.in_soak("torch", style) for style in ("gan", "vq")),
        *(campaign.in_soak("tensorflow", style) for style in ("gan", "wgan", "vq")),
        campaign.in_soak("jax", "named"),
    ],
    indirect=["backend"],
)
def test_a_train_step_of_ones_own_comes_back(backend: Lab, style: str, tmp_path: Path) -> None:
    """Killed before the sixth step, with it, and at the end of an epoch, whose logs are those that the step had reported."""
    places: list[Place] = [["batch", 4], ["batch", 5], ["before", 1]]
    warns = ("weights are logged, not gradients",)
    # The rehearsal of the step leaves no trace: the twin.
    about: dict[str, Any] = {"warns": warns, "with_twin": backend.backend == "torch", "style": style}
    first = 0 if campaign.is_soak() else 1 if backend.backend == "torch" else 2
    prove_exact(backend, "own_steps:fit", tmp_path, places[first:], **about)


@pytest.mark.sampled(0)
@pytest.mark.crash
def test_an_eager_train_step_is_rehearsed_and_undone(tensorflow: Lab, tmp_path: Path) -> None:
    plain = run_whole(tensorflow, "own_steps:fit", tmp_path / "plain", is_logged=False, style="wgan", eager=True)
    resumed = resume_killed(tensorflow, "own_steps:fit", tmp_path, [["batch", 4]], style="wgan", eager=True)
    assert resumed.of("model") == plain.of("model")


@pytest.mark.parametrize("backend", ["torch", campaign.in_soak("tensorflow")], indirect=True)
def test_a_train_step_with_two_updates_logs_weights_and_says_so(backend: Lab, tmp_path: Path) -> None:
    """Another optimizer, which trains nothing, is no obstacle."""
    found = backend.value("inside.own_train_step", folder=str(tmp_path))
    assert "train_step of its own" in found["said"]
    assert (found["different"], found["exact"]) == ([], True)
    assert "needs exactly one optimizer.apply" in found["refused"] or "cannot be right here" in found["refused"]


def test_an_optimizer_that_gradients_do_not_tell_everything_of_falls_back_to_weights(torch: Lab, tmp_path: Path) -> None:
    found = torch.value("inside.noisy_optimizer", folder=str(tmp_path))
    assert "weights are logged from step 1 on" in found["said"]
    assert (found["different"], found["exact"]) == ([], True)


@pytest.mark.crash
@pytest.mark.parametrize(
    ("backend", "model", "step"),
    [("torch", "late", 7), ("torch", "spectral", 1), campaign.in_soak("tensorflow", "spectral", 1)],
    indirect=["backend"],
)
def test_a_layer_that_writes_its_weights_falls_back_to_weights_and_is_named_once(
    backend: Lab, model: str, step: int, tmp_path: Path
) -> None:
    """Late: at the tenth call; Keras calls the layer three times to build the model, and calls begin anew in each process."""
    whole = run_whole(backend, "fits:fit", tmp_path / "whole", model=model)
    (said,) = [text for text in whole.heard.warnings if "weights are logged" in text]
    assert f"weights are logged from step {step} on, not gradients: train_step writes" in said
    if model == "spectral":
        resumed = resume_killed(backend, "fits:fit", tmp_path, [["batch", 13]], model=model)
        assert (resumed.exact, resumed.of("model")) == (True, whole.of("model"))


# Random numbers and states of layers.


@pytest.mark.crash
@pytest.mark.parametrize(
    ("kind", "log", "eager"),
    [
        campaign.in_soak("none", "gradients", False),  # only a callback draws by tf.random
        campaign.in_soak("keras", "gradients", False),
        campaign.in_soak("layer", "gradients", True),  # they follow from the global seed
        campaign.in_soak("layer", "weights", True),
    ],
)
def test_random_numbers_come_back(kind: str, log: str, eager: bool, tensorflow: Lab, tmp_path: Path) -> None:
    prove_exact(tensorflow, "own_steps:noisy", tmp_path, [["batch", 8]], kind=kind, log=log, eager=eager)


@pytest.mark.crash
@pytest.mark.parametrize(
    ("kind", "log", "eager"),
    [
        ("layer", "gradients", False),
        campaign.in_soak("function", "weights", False),
        campaign.in_soak("seeded", "gradients", True),
        campaign.in_soak("function", "weights", True),
    ],
)
def test_random_numbers_of_the_runtime_are_named(kind: str, log: str, eager: bool, tensorflow: Lab, tmp_path: Path) -> None:
    operation = {"function": "RandomUniform"}.get(kind, "RandomStandardNormal")
    resumed = resume_killed(tensorflow, "own_steps:noisy", tmp_path, [["batch", 8]], kind=kind, log=log, eager=eager)
    assert eager or any(f"by tf.random ({operation})" in note for note in resumed.notes), resumed.notes
    assert resumed.exact is False  # found by the proof


@pytest.mark.crash
@pytest.mark.parametrize(
    ("backend", "about"),
    [
        ("torch", {"resets": False}),
        campaign.in_soak("torch", {"resets": True}),
        *(campaign.in_soak("tensorflow", {"resets": resets, "deep": False}) for resets in (True, False)),
        # A step does not write them on JAX. Reset states are what a compiled step was traced with; other steps read them anew.
        campaign.in_soak("jax", {"resets": True, "deep": False, "jit": True, "epochs": 2}),
        campaign.in_soak("jax", {"resets": False, "looks": True, "deep": False, "jit": False, "epochs": 2}),
    ],
    indirect=["backend"],
    ids=str,
)
def test_stateful_recurrent_layers_come_back(backend: Lab, about: dict[str, Any], tmp_path: Path) -> None:
    places: list[Place] = [["before", 1], ["batch", 8]]
    prove_exact(backend, "fits:recurrent", tmp_path, places if campaign.is_soak() else places[:1], **about)


@pytest.mark.sampled(0)
@pytest.mark.crash
def test_states_that_a_compiled_step_on_jax_was_not_traced_with_are_named(jax: Lab, tmp_path: Path) -> None:
    about: dict[str, Any] = {"resets": False, "looks": True, "deep": False, "jit": True, "epochs": 2}
    resumed = resume_killed(jax, "fits:recurrent", tmp_path, [["batch", 8]], **about)
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
    ("tensorflow", HARD, {"model": "line"}),
    campaign.in_soak("tensorflow", ALL, {"model": "line"}),
    campaign.in_soak("tensorflow", HARD, {"model": "dense"} | XLA),
    campaign.in_soak("jax", HARD, {"model": "dense"} | XLA),
    # A model that a compiler would fuse with its update.
    ("jax", ["adam"], {"model": "fusing"} | XLA),
    campaign.in_soak("tensorflow", ["adam", "lion"], {"model": "fusing"} | XLA),
    campaign.in_soak("jax", ["lion"], {"model": "fusing"} | XLA),
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
