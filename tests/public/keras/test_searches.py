"""A run folder belongs to one training: searches, cross-validation and scripts that give it to another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.keras.lab import Lab
from tests.support import campaign

SCRIPTS = "tests.public.keras.searches"


@pytest.mark.crash
@pytest.mark.parametrize("executions", [campaign.in_soak(1), 2])
def test_a_killed_tuner_goes_on_with_each_trial_in_its_own_run(executions: int, torch: Lab, tmp_path: Path) -> None:
    arguments = {"executions": executions}
    whole = torch.value(f"{SCRIPTS}.keras_tuner", folder=str(tmp_path / "whole"), **arguments)
    assert [trial[0] for trial in whole["trials"].values()] == ["COMPLETED"] * 3
    assert len({trial[2] for trial in whole["trials"].values()}) == 3
    assert list(whole["batches"].values()) == [10] * 3 * executions, "each trial trains"
    killed = torch.run(f"{SCRIPTS}.keras_tuner", folder=str(tmp_path / "killed"), die=[executions, 7], **arguments)
    assert killed.was_killed, killed.output[-3000:]
    resumed = torch.value(f"{SCRIPTS}.keras_tuner", folder=str(tmp_path / "killed"), **arguments)
    assert resumed["trials"] == whole["trials"]
    assert resumed["best"] == whole["best"]
    assert resumed["runs"] == whole["runs"]
    assert resumed["batches"][0] <= 5, "the killed trial goes on where it stopped, and computes one batch again"


@pytest.mark.crash
def test_a_killed_cross_validation_goes_on_in_its_fold(torch: Lab, tmp_path: Path) -> None:
    whole = torch.value(f"{SCRIPTS}.cross_validation", folder=str(tmp_path / "whole"))
    assert list(whole["batches"].values()) == [8, 8, 8, 12], "each fold and the final fit train"
    assert torch.run(f"{SCRIPTS}.cross_validation", folder=str(tmp_path / "killed"), die=[1, 5]).was_killed
    resumed = torch.value(f"{SCRIPTS}.cross_validation", folder=str(tmp_path / "killed"))
    assert resumed["scores"] == whole["scores"]
    assert resumed["final"] == whole["final"]
    assert list(resumed["batches"].values()) in ([0, 5, 8, 12], [0, 4, 8, 12]), "one of them is computed again"


@pytest.mark.crash
def test_a_killed_study_goes_on_in_its_trial(torch: Lab, tmp_path: Path) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole = torch.value(f"{SCRIPTS}.optuna", folder=str(tmp_path / "whole"))
    assert list(whole["batches"].values()) == [12] * 3
    assert torch.run(f"{SCRIPTS}.optuna", folder=str(tmp_path / "killed"), die=[1, 8]).was_killed
    resumed = torch.value(f"{SCRIPTS}.optuna", folder=str(tmp_path / "killed"))
    assert resumed["values"] == whole["values"]
    assert resumed["batches"][0] <= 6, "one of them is computed again"


@pytest.mark.parametrize("backend", [campaign.in_soak("tensorflow"), "torch", campaign.in_soak("jax")], indirect=True)
def test_a_folder_that_is_given_to_another_training_is_refused(backend: Lab, tmp_path: Path) -> None:
    found = backend.value(f"{SCRIPTS}.one_folder_for_all", folder=str(tmp_path))
    assert found["first"] == "trained"
    assert "model.optimizer.learning_rate was 0.01, now it is 0.5" in found["rate"]
    assert "accept_changes=True" in found["rate"]
    assert "recorded as float32[64, 8], now float32[64, 9]" in found["units"]
    assert "the arrays hold other values" in found["fold"]
    assert "another model" in found["equal"]
    assert "folder of its own" in found["equal"]


def test_a_finished_run_says_so_to_its_own_script_and_refuses_another(torch: Lab, tmp_path: Path) -> None:
    first = torch.value(f"{SCRIPTS}.finished_again", folder=str(tmp_path))
    again = torch.run(f"{SCRIPTS}.finished_again", folder=str(tmp_path))
    assert again.value == first | {"batches": {0: 0}}
    assert "was finished before, at step" in again.output
    other = torch.run(f"{SCRIPTS}.finished_again", folder=str(tmp_path), rate=0.02)
    assert other.code == 1
    assert "model.optimizer.learning_rate was 0.01, now it is 0.02" in other.output


@pytest.mark.parametrize(
    ("backend", "shape"), [("torch", "loader"), campaign.in_soak("tensorflow", "dataset")], indirect=["backend"]
)
def test_other_samples_behind_a_loader_are_refused(backend: Lab, shape: str, tmp_path: Path) -> None:
    first = backend.value(f"{SCRIPTS}.loader", folder=str(tmp_path), shape=shape)
    assert backend.value(f"{SCRIPTS}.loader", folder=str(tmp_path), shape=shape) == first | {"batches": {0: 0}}
    other = backend.run(f"{SCRIPTS}.loader", folder=str(tmp_path), shape=shape, first=5)
    assert other.code == 1
    assert "hold other values" in other.output
