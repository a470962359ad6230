"""A script that gives each of its fits a TranLogsCallback of its own, with the same folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.keras.lab import Lab
from tests.support import campaign

SCRIPTS = "tests.public.keras.fresh_callbacks"


@pytest.mark.crash
@pytest.mark.parametrize("backend", [campaign.in_soak("tensorflow"), "torch"], indirect=True)
def test_a_killed_second_fit_with_a_fresh_callback_goes_on(backend: Lab, tmp_path: Path) -> None:
    same, whole = (
        backend.value(f"{SCRIPTS}.freeze_and_thaw", run=str(tmp_path / name), fresh=fresh)
        for name, fresh in (("same", False), ("whole", True))
    )
    assert whole == same, "as with one callback object"
    for die in (4, 10, 4):  # in the first fit, in the second one, in the second one again
        killed = backend.run(f"{SCRIPTS}.freeze_and_thaw", run=str(tmp_path / "killed"), fresh=True, die=die)
        assert killed.was_killed, killed.output[-3000:]
    assert backend.value(f"{SCRIPTS}.freeze_and_thaw", run=str(tmp_path / "killed"), fresh=True) == whole
    again = backend.run(f"{SCRIPTS}.freeze_and_thaw", run=str(tmp_path / "killed"), fresh=True)
    assert again.value == whole
    assert "was finished before" in again.output
    assert "was finished before, at step" in again.output


def test_a_fresh_callback_for_another_model_is_refused(torch: Lab, tmp_path: Path) -> None:
    said = torch.value(f"{SCRIPTS}.another_model", run=str(tmp_path))
    assert said.startswith("UsageError")
    assert "another model" in said
    assert "pass the same callback object" in said


def test_a_script_whose_first_fit_has_changed_is_refused_there(torch: Lab, tmp_path: Path) -> None:
    torch.value(f"{SCRIPTS}.freeze_and_thaw", run=str(tmp_path), fresh=True)
    changed = torch.run(f"{SCRIPTS}.freeze_and_thaw", run=str(tmp_path), fresh=True, rate=0.03)
    assert changed.code == 1
    assert "model.optimizer.learning_rate was 0.01, now it is 0.03" in changed.output
