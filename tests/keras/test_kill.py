"""A process that runs `model.fit` dies by SIGKILL; the same script, run again, ends with the bits of one that nobody killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab, differences
from tests.support import campaign

pytestmark = pytest.mark.crash

MODES = [
    ("tensorflow", {}),
    campaign.in_soak("tensorflow", {"jit": True}),
    ("tensorflow", {"eager": True, "model": "dense"}),
    campaign.in_soak("tensorflow", {"executions": 4, "model": "dense"}),  # two of them are in test_recheck.py
    ("torch", {}),
    ("jax", {"jit": True, "model": "dense", "optimizer": "adam"}),
    campaign.in_soak("jax", {"jit": True, "executions": 4}),
]


def named(mode: Any) -> str:
    mode = getattr(mode, "values", mode)
    return "-".join([mode[0], *(f"{name}{value}" for name, value in mode[1].items())])


def prove_exact(lab: Lab, folder: Path, deaths: list[dict[str, Any]], **arguments: Any) -> list[Any]:
    """Kill at each of the places, one process after the other, and finish; compare with a run that nobody killed."""
    if arguments.get("is_identified"):  # by a file beside the run
        uninterrupted = lab.start_first("fit", run=str(folder / "whole"), **arguments)
    else:
        uninterrupted = lab.start_twin("fit", **arguments)
    for death in deaths:
        ended = lab.run("fit", run=str(folder / "killed"), **(arguments | death))
        assert ended.was_killed, ended.output[-6000:]
    ended = lab.run("fit", run=str(folder / "killed"), **arguments)
    assert ended.code == 0, ended.output[-6000:]
    right = uninterrupted.wait()
    assert right.code == 0, right.output[-6000:]
    for what in ("state", "history", "epochs", "beside"):
        if isinstance(right.value[what], dict):
            assert differences(right.value[what], ended.value[what]) == [], what
        else:
            assert right.value[what] == ended.value[what], what
    assert ended.value["report"]["exact"] is right.value["report"]["exact"] is True, ended.value["report"]
    assert ended.value["report"]["checkpoint_step"] is not None, "nothing was recovered"
    return [right.value, ended.value]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("backend", "options"), MODES, ids=map(named, MODES), indirect=["backend"])
def test_kills_in_the_middle_of_epochs_leave_no_trace(backend: Lab, options: dict[str, Any], tmp_path: Path) -> None:
    """Other ways of compiling than a graph are killed once in the gate."""
    places = (4, 3) if options.get("executions") else (13, 11)
    is_variant = backend.backend == "tensorflow" and bool(options) and not campaign.is_soak()
    deaths = [{"die": ["batch", place]} for place in places[: 1 if is_variant else 2]]
    prove_exact(backend, tmp_path, deaths, validation=True, others=["counting"], is_identified=True, **options)
    killed, whole = ((tmp_path / f"{name}.ids").read_text().split() for name in ("killed", "whole"))
    assert (len(killed), set(killed) & set(whole)) == (len(deaths) + 1, set())
    assert len(set(killed)) == 1, "the id that the script reads before fit, in every life"


@pytest.mark.parametrize("backend", [campaign.in_soak("tensorflow"), "torch", campaign.in_soak("jax")], indirect=True)
@pytest.mark.parametrize("log", ["weights"])
def test_weights_logged_leave_no_trace_either(backend: Lab, log: str, tmp_path: Path) -> None:
    jit = backend.backend == "jax"
    deaths = [{"die": ["batch", 13]}, {"die": ["epoch-end", 1]}]
    prove_exact(backend, tmp_path, deaths, model="dense", options={"log": log}, jit=jit)


PLACES: list[list[dict[str, Any]]] = [
    [{"die": ["batch-begin", 1]}],
    [{"die": ["batch", 1]}],
    [{"die": ["batch", 10]}, {"die": ["batch", 10]}],
    [{"die": ["epoch-end", 1]}, {"die": ["epoch-end", 2]}],
    [{"die": ["validation", 2]}, {"die": ["validation", 4]}],
    [{"failpoint": "checkpoint.snapshot=kill@2"}, {"failpoint": "checkpoint.publish=kill@1"}],  # later ones may be left out
    [{"failpoint": "checkpoint.state=kill@1"}, {"failpoint": "boundary.before=kill@1"}],
    [{"failpoint": "boundary.after=kill@6"}, {"failpoint": "recovery.replayed=kill@1"}],
    [{"failpoint": "log.before_commit=kill@9"}, {"failpoint": "log.after_commit=kill@9"}],
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("deaths", PLACES, ids=lambda deaths: "-".join(str(next(iter(d.values()))) for d in deaths))
def test_a_kill_at_any_place_leaves_no_trace(deaths: list[dict[str, Any]], torch: Lab, tmp_path: Path) -> None:
    prove_exact(torch, tmp_path, deaths, validation=True, others=["plateau", "counting"], optimizer="adam")


def test_a_kill_at_the_end_of_epochs_leaves_no_trace_on_tensorflow(tensorflow: Lab, tmp_path: Path) -> None:
    deaths = [{"die": ["batch", 10]}, {"die": ["validation", 1]}, {"die": ["epoch-end", 1]}]
    others = ["plateau", "stopping"]
    prove_exact(tensorflow, tmp_path, deaths, model="dense", validation=True, others=others, optimizer="adam", epochs=4)


@pytest.mark.parametrize("backend", [campaign.in_soak("tensorflow"), "torch", "jax"], indirect=True)
def test_kills_at_random_batches_leave_no_trace(backend: Lab, tmp_path: Path) -> None:
    chance = campaign.dice(backend.backend)
    deaths = [{"die": ["batch", chance.randrange(1, 10)]} for _ in range(3 if backend.backend == "torch" else 2)]
    prove_exact(backend, tmp_path, deaths, model="dense", jit=backend.backend == "jax", others=["plateau"], optimizer="adam")


def test_backup_and_restore_repeats_batches_on_top_of_later_weights(tensorflow: Lab, tmp_path: Path) -> None:
    """For the record: the callback that Keras ships, under the same kill."""
    script = {"run": None, "model": "dense"}
    whole = tensorflow.value("fit", **script, backup=str(tmp_path / "whole"))
    ended = tensorflow.run("fit", **script, backup=str(tmp_path / "killed"), die=["batch", 18])
    assert ended.was_killed
    resumed = tensorflow.value("fit", **script, backup=str(tmp_path / "killed"))
    assert differences(whole["state"], resumed["state"]), "BackupAndRestore is exact now: docs/keras.md says otherwise"
    assert len(resumed["epochs"]) < len(whole["epochs"])


def test_the_oldest_supported_keras(older_keras: Lab, tmp_path: Path) -> None:
    prove_exact(older_keras, tmp_path, [{"die": ["batch", 13]}], model="dense", validation=True)
