"""The newest unit before a crash is computed again by the script: equal, it proves the resume; else it names what differs.

Equal units are in every proof of these folders.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab
from tests.keras.proof import kill, resume_killed, run_whole
from tests.support import campaign

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("backend", ["torch", campaign.in_soak("tensorflow"), campaign.in_soak("jax")], indirect=True)
def test_a_counter_that_sets_the_learning_rate_is_named_and_no_step_is_lost(backend: Lab, tmp_path: Path) -> None:
    jit = {"jit_compile": backend.backend == "jax"}
    about: dict[str, Any] = {"beside": ["global-rate"], "model": "line", "compiled": jit}
    found = resume_killed(backend, "fits:fit", tmp_path, [["batch", 13]], **about)
    assert (found.exact, found.recheck, found.step) == (False, "different", 12)
    note = next(note for note in found.notes if "was computed again" in note)
    assert "(step 12) was computed again, and optimizer/optimizer/adam/learning_rate differs from the record by up to" in note
    assert "keep it as an attribute of a callback" in note
    verified = backend.ask("verify", tmp_path / "killed/run", "--replay")
    (replayed,) = verified["ranks"][0]["replays"]
    assert (verified["problems"], replayed["step"], replayed["exact"]) == ([], 30, True), (
        "each step follows from the one before"
    )


def test_what_a_unit_deviates_by_is_told_after_the_next_crash(torch: Lab, tmp_path: Path) -> None:
    about: dict[str, Any] = {"beside": ["global-rate"]}
    found = resume_killed(torch, "fits:fit", tmp_path, [["batch", 6], ["batch", 4]], **about)
    assert found.exact is False
    assert any("(step 5) was computed again" in note for note in found.notes), found.notes


def test_times_that_a_callback_measures_are_told_from_other_state(torch: Lab, tmp_path: Path) -> None:
    found = resume_killed(torch, "fits:fit", tmp_path, [["batch", 6]], beside=["timing"])
    assert (found.exact, found.recheck) == (None, "different")
    assert "callback.Timing.times" in found.notes[0]
    assert "All else is equal" in found.notes[0]


def test_callbacks_that_a_script_drops_and_adds_are_not_compared(torch: Lab, tmp_path: Path) -> None:
    kill(torch, "fits:fit", tmp_path, ["batch", 6], beside=["counting"])
    found = run_whole(torch, "fits:fit", tmp_path, beside=["timing"])
    assert (found.exact, found.recheck) == (True, "equal")


def test_without_a_recheck_recovery_lands_on_the_newest_boundary(torch: Lab, tmp_path: Path) -> None:
    found = resume_killed(torch, "fits:fit", tmp_path, [["batch", 6]], options={"recheck": False})
    assert (found.exact, found.recheck, found.step) == (True, "", 5)


def test_a_fit_that_is_over_is_not_computed_again(torch: Lab, tmp_path: Path) -> None:
    found = resume_killed(torch, "fits:fit", tmp_path, [["end", 1]])
    assert found.recheck == "equal", "killed before its end was recorded"
    found = run_whole(torch, "fits:fit", tmp_path / "killed", epochs=4)
    assert (found.exact, found.recheck, found.step) == (True, "", 30)
