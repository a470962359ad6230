"""A Keras run without its script: replayed, verified, exported to files that Keras loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.keras.lab import Lab
from tests.keras.proof import kill
from tests.support import campaign

COMMAND = str(Path(sys.executable).parent / "tranlogs")


REPLAY_AND_LIST_MODULES = """
import sys
from tranlogs.cli import main
try:
    main(["replay", sys.argv[1], "--step", "99", "--out", sys.argv[2]])
except SystemExit as end:
    print(end.code, *sorted({"keras", "tensorflow", "torch", "jax"} & sys.modules.keys()))
"""


@pytest.mark.parametrize("backend", ["torch", campaign.in_soak("tensorflow"), campaign.in_soak("jax")], indirect=True)
def test_weights_that_load_weights_reads(backend: Lab, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "state.weights.h5"
    kill(backend, "fits:fit", tmp_path, ["batch", 13], compiled={"jit_compile": backend.backend == "jax"})
    told = backend.ask("replay", run, "--out", out)
    assert (told["step"], told["exact"]) == (12, True)
    assert backend.value("inside.from_weights", path=str(out), run=str(run)) == {"optimizer_step": 12, "same_as_resumed": True}


def test_a_step_in_the_past_and_the_whole_model(torch: Lab, tmp_path: Path) -> None:
    run = tmp_path / "run"
    kill(torch, "fits:fit", tmp_path, ["batch", 13])
    told = torch.ask("replay", run, "--step", 9, "--out", tmp_path / "state.keras")
    assert told["step"] == 9
    assert torch.value("inside.loads_model", path=str(tmp_path / "state.keras")) == [13, 10]
    assert torch.ask("verify", run, "--replay")["problems"] == []
    command = [sys.executable, "-c", REPLAY_AND_LIST_MODULES, str(run), str(tmp_path / "never.keras")]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert "step 99 is not covered: the log has no boundary at that step; the nearest is 12" in refused.stderr
    assert refused.stdout.split() == ["1"], "the exit code, and no framework"
    for words, said in (
        (("--out", tmp_path / "state.pt"), "must end in .weights.h5"),
        (("--format", "dcp", "--out", tmp_path / "out"), "--out FILE.keras` (for keras.models.load_model)"),
    ):
        code, out, err = torch.call("replay", run, *words)
        assert code == 2
        assert said in " ".join((err + out).split())


def test_another_setting_of_xla_under_which_all_steps_are_equal_is_no_doubt(
    jax: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(jax, "fits:fit", tmp_path, ["batch", 5], compiled={"jit_compile": True})
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_min_max=false")
    (rank,) = jax.ask("verify", tmp_path / "run", "--replay")["ranks"]
    (replayed,) = rank["replays"]
    assert (replayed["replayed"], replayed["exact"]) == (4, True)
    assert any(note["code"] == "environment" and "XLA_FLAGS differs" in note["sentence"] for note in replayed["notes"])


@pytest.mark.soak
def test_the_command_finds_the_backend_by_itself(jax: Lab, tmp_path: Path) -> None:
    """In a process of its own, on whatever backend the run names."""
    kill(jax, "fits:fit", tmp_path, ["batch", 5], compiled={"jit_compile": True})
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    command = [COMMAND, "verify", str(tmp_path / "run"), "--replay", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["ranks"][0]["replays"][0]["exact"] is True


@pytest.mark.parametrize("backend", ["torch", "tensorflow"], indirect=True)
def test_all_that_an_update_depends_on_is_known_without_the_script(backend: Lab, tmp_path: Path) -> None:
    """Constraints, what weight decay leaves out, and the types of the numbers in a schedule, which decide how it rounds."""
    found = backend.value("inside.without_the_script", folder=str(tmp_path))
    right = {"exact": True, "replayed": 10, "same": True}
    assert found == dict.fromkeys(("constrained", "excluded", "numpy", "tensor", "own"), right)
