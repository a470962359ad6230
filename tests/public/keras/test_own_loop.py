"""Training loops of one's own, killed at random moments, end with the bits of the script left alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab, differences
from tests.keras.tool import ask, call
from tests.public.keras.proof import kill, prove_exact, resume_killed, run_killed, run_whole
from tests.support import campaign

_SCRIPTS = "tests.public.keras.own_loop"
_KILLS = campaign.rounds(5)


def _places(seed: int) -> list[list[Any]]:
    """Moments at which the process dies, counted from its own start: 15 batches and 3 epochs are all that there are."""
    draw = random.Random(seed)
    return [*(["batch", draw.randint(1, 3)] for _ in range(_KILLS)), ["epoch", 1]]


def _some_places(seed: int, *, is_variant: bool) -> list[list[Any]]:
    """Return them all, or for variants of a script the first of them, in the gate."""
    return _places(seed)[: 1 if is_variant and not campaign.is_soak() else None]


def _prove(lab: Lab, script: str, folder: Path, places: list[list[Any]], **arguments: Any) -> Any:
    twin = run_whole(lab, script, folder / "twin", is_logged=False, **arguments)
    whole, resumed = run_killed(lab, script, folder, places, **arguments)
    for found in (whole, resumed):
        assert differences(twin.of("state"), found.of("state")) == [], places
        assert found.of("history") == twin.of("history"), places
        assert found.outcome.get("['drawn']") == twin.outcome.get("['drawn']"), places
    return resumed


@pytest.mark.sampled(1)
@pytest.mark.crash
@pytest.mark.parametrize(
    ("eager", "kind", "every"),
    [campaign.in_soak(False, "adam", 4), (False, "schedule", "epoch"), (True, "sgd", 100), (False, "scaled", 5)],
)
def test_the_guide_to_a_loop_from_scratch_ends_with_the_bits_of_its_twin(
    eager: bool, kind: str, every: Any, tensorflow: Lab, tmp_path: Path
) -> None:
    places = _some_places(11, is_variant=kind != "schedule")
    resumed = _prove(tensorflow, f"{_SCRIPTS}:guide", tmp_path, places, eager=eager, kind=kind, every=every)
    assert resumed.exact is True, resumed.notes


@pytest.mark.crash
def test_a_gan_with_two_optimizers_ends_with_the_bits_of_its_uninterrupted_run(tensorflow: Lab, tmp_path: Path) -> None:
    script = f"{_SCRIPTS}:gan"
    resumed = prove_exact(tensorflow, script, tmp_path, _some_places(12, is_variant=True))
    twin = run_whole(tensorflow, script, tmp_path / "twin", is_logged=False)
    losses = [[float(value) for kind, value in life.of("history").values() if kind == "float"] for life in (resumed, twin)]
    assert len(losses[0]) == 2
    assert losses[0] == pytest.approx(losses[1], rel=1e-5), "the compiler rounds otherwise where updates stand apart"


@pytest.mark.sampled(0)
@pytest.mark.crash
def test_a_gan_whose_graphs_are_not_rewritten_ends_with_the_bits_of_its_twin(tensorflow: Lab, tmp_path: Path) -> None:
    resumed = _prove(tensorflow, f"{_SCRIPTS}:gan", tmp_path, _places(12), rewrites=False)
    assert resumed.exact is True, resumed.notes


@pytest.mark.crash
def test_the_guide_on_pytorch_ends_with_the_bits_of_its_twin(torch: Lab, tmp_path: Path) -> None:
    resumed = _prove(torch, f"{_SCRIPTS}:torch_guide", tmp_path, _places(13))
    assert resumed.exact is True, resumed.notes


@pytest.mark.crash
def test_a_killed_run_of_a_loop_is_replayed_without_its_script(torch: Lab, tmp_path: Path) -> None:
    """Each step is redone and compared with its fingerprint; the weights of one model are written for Keras."""
    run, out = tmp_path / "run", tmp_path / "state.weights.h5"
    kill(torch, f"{_SCRIPTS}:torch_guide", tmp_path, ["batch", 8])
    _demand_replayed(ask(torch, "verify", run, "--replay"), steps=7)
    replayed = ask(torch, "replay", run, "--out", out)
    assert (replayed["step"], replayed["exact"]) == (7, True)
    assert any("the optimizer is not in the file" in note for note in replayed["notes"]), replayed
    assert torch.value("tests.public.keras.own_loop.has_recovered_weights", run=str(run), path=str(out))


@pytest.mark.crash
def test_a_killed_run_of_two_optimizers_is_replayed_without_its_script(tensorflow: Lab, tmp_path: Path) -> None:
    run = tmp_path / "run"
    kill(tensorflow, f"{_SCRIPTS}:gan", tmp_path, ["batch", 8])
    _demand_replayed(ask(tensorflow, "verify", run, "--replay"), steps=14)
    code, _, errors = call(tensorflow, "replay", run, "--out", tmp_path / "state.weights.h5")
    assert code == 2
    assert "the run trains 2 models in a loop of one's own" in " ".join(errors.split())


def _demand_replayed(verified: dict[str, Any], *, steps: int) -> None:
    assert verified["problems"] == []
    (found,) = verified["ranks"][0]["replays"]
    assert (found["step"], found["exact"], found["first_divergent_step"]) == (steps, True, None)
    assert found["replayed"]


@pytest.mark.sampled(0)
@pytest.mark.crash
def test_a_metric_that_nobody_tracks_is_named(tensorflow: Lab, tmp_path: Path) -> None:
    script = f"{_SCRIPTS}:guide"
    resumed = resume_killed(tensorflow, script, tmp_path, [["batch", 8]], tracks=False)
    assert resumed.exact is None
    assert any("the loop writes sparse_categorical_accuracy" in note for note in resumed.notes), resumed.notes


@pytest.mark.parametrize("backend", ["tensorflow", "torch"], indirect=True)
def test_a_wrong_use_is_refused_with_what_to_do(backend: Lab, tmp_path: Path) -> None:
    found = backend.value("tests.public.keras.own_loop_inputs.refusals", run=str(tmp_path))
    words = {
        "no optimizer": "expected an optimizer of keras.optimizers, not a str",
        "no model": "model= must be a Keras model or a list of models, got None",
        "wrapped twice": "this optimizer is logged already; wrap the plain one",
        "logged already": "close that LoggedOptimizer first",
        "tracked": "track(thing=...): a object has no state that can be stored",
        "tracked, unstorable": "track['holder']['x']",
        "tracked twice": "track(numbers=...): another object is tracked under this name already",
        "other variables": "which is no trainable variable of the model that was given with this optimizer",
        "no bound": "batches() outside of epochs() needs until=...",
        "range": "optimizer.epochs(3, ...) yields the numbers from 0 on, and leaves finished epochs out. The numbers of",
        "nested": "one loop of LoggedOptimizer runs inside another",
        "unbuilt": "Call the model once on a batch before the loop",
    }
    if backend.backend == "torch":
        words |= {
            "torch's given to Keras's": "Optimizers of torch.optim are logged by tranlogs_torch.LoggedOptimizer",
            "Keras's given to torch's": "got the Keras optimizer Adam. Optimizers of Keras are logged by tranlogs_keras",
            "a nested one of Keras's": "got the Keras optimizer LossScaleOptimizer. Optimizers of Keras are logged by",
        }
    assert found.keys() == words.keys()
    assert {name: text for name, text in found.items() if words[name] not in text} == {}


def test_a_stateless_loop_on_jax_is_refused_by_name(jax: Lab, tmp_path: Path) -> None:
    found = jax.value("tests.public.keras.own_loop_inputs.refusals", run=str(tmp_path))
    assert "not supported on the Keras backend 'jax'" in found["no model"]


def test_an_object_that_is_tracked_under_another_name_is_named(tensorflow: Lab, tmp_path: Path) -> None:
    notes = tensorflow.value("tests.public.keras.own_loop_inputs.renamed", run=str(tmp_path / "run"))
    for name in ("noise", "dropout"):
        assert any(f"'{name}' was tracked by the run or is tracked now, and not both" in note for note in notes), notes
