"""A Keras run without its script: replayed, verified, exported to files that Keras loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab
from tests.keras.tool import ask

COMMAND = str(Path(sys.executable).parent / "tranlogs")


REPLAY_AND_LIST_MODULES = """
import sys
from tranlogs.cli import app
try:
    app(["replay", sys.argv[1], "--step", "99", "--out", sys.argv[2]])
except SystemExit as end:
    print(end.code, *sorted({"keras", "tensorflow", "torch", "jax"} & sys.modules.keys()))
"""


def cli(*arguments: str, **variables: str) -> dict[str, Any]:
    """A command in a process of its own, on whatever backend the run names."""
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"} | variables
    command = [COMMAND, *arguments, "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("backend", "options"),
    [("torch", {}), ("jax", {"jit": True, "model": "dense", "optimizer": "adam"}), ("tensorflow", {"model": "dense"})],
    indirect=["backend"],
)
def test_weights_that_load_weights_reads(backend: Lab, options: dict[str, Any], tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "state.weights.h5"
    assert backend.run("fit", run=str(run), die=["batch", 13], **options).was_killed
    words = ("replay", str(run), "--out", str(out))
    told = cli(*words) if backend.backend == "jax" else ask(backend, *words)
    assert (told["step"], told["exact"]) == (12, True)
    loaded = backend.value("from_weights", path=str(out), run=str(run), **options)
    assert loaded["optimizer_step"] == 12
    assert loaded["same_as_resumed"]


def test_a_step_in_the_past_and_the_whole_model(torch: Lab, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert torch.run("fit", run=str(run), die=["batch", 13]).was_killed
    told = ask(torch, "replay", run, "--step", 9, "--out", tmp_path / "state.keras")
    assert told["step"] == 9
    assert torch.value("loads_model", path=str(tmp_path / "state.keras")) == [13, 10]
    assert ask(torch, "verify", run, "--replay")["problems"] == []
    command = [sys.executable, "-c", REPLAY_AND_LIST_MODULES, str(run), str(tmp_path / "never.keras")]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert "step 99 is not covered: the log has no sound boundary at that step; the nearest is 12" in refused.stderr
    assert refused.stdout.split() == ["1"], "the exit code, and no framework"


def test_another_setting_of_xla_under_which_all_steps_are_equal_is_no_doubt(jax: Lab, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert jax.run("fit", run=str(run), die=["batch", 5], model="dense", optimizer="adam", jit=True).was_killed
    (rank,) = cli("verify", str(run), "--replay", XLA_FLAGS="--xla_cpu_enable_fast_min_max=false")["ranks"]
    (replayed,) = rank["replays"]
    assert (replayed["replayed"], replayed["exact"]) == (4, True)
    assert any("XLA_FLAGS differs" in note for note in replayed["notes"])


def test_names_of_files_are_checked_first(torch: Lab, tmp_path: Path) -> None:
    assert torch.run("fit", run=str(tmp_path / "run"), die=["batch", 3]).was_killed
    command = [COMMAND, "replay", str(tmp_path / "run"), "--out", str(tmp_path / "state.pt")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "must end in .weights.h5" in " ".join((done.stderr + done.stdout).split())
    command = [COMMAND, "replay", str(tmp_path / "run"), "--format", "dcp", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "this is a Keras run" in done.stderr
    assert "--out FILE.keras` (for keras.models.load_model)" in done.stderr


def test_constraints_and_what_weight_decay_leaves_out_are_known_without_the_script(torch: Lab, tmp_path: Path) -> None:
    found = torch.value("without_the_script", folder=str(tmp_path))
    for name in ("constrained", "excluded"):
        assert found[name]["exact"] is True, name
        assert found[name]["same"] is True, name
        assert found[name]["replayed"] == 10, name
