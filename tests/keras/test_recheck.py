"""The newest unit before a crash is computed again by the script: equal, it proves the resume; else it names what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab
from tests.keras.test_kill import prove_exact
from tests.keras.tool import ask
from tests.public.keras.proof import resume_killed, run_killed
from tests.support import campaign

pytestmark = pytest.mark.crash


@pytest.fixture(autouse=True)
def rechecks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANLOGS_RECHECK", "1")


def _resume(lab: Lab, run: Path, deaths: list[list[Any]], **arguments: Any) -> dict[str, Any]:
    for death in deaths:
        ended = lab.run("fit", run=str(run), die=death, **arguments)
        assert ended.was_killed, ended.output[-3000:]
    found: dict[str, Any] = lab.value("fit", run=str(run), **arguments)
    return found


def _demand_replayed(lab: Lab, run: Path) -> None:
    """Demand that each step of the log follows from the one before."""
    verified = ask(lab, "verify", run, "--replay")
    assert verified["problems"] == []
    (found,) = verified["ranks"][0]["replays"]
    assert (found["step"], found["exact"]) == (30, True), found


SMALL = {"model": "dense", "optimizer": "adam"}
CASES: list[tuple[str, list[list[Any]], dict[str, Any], int]] = [
    # Killed in the first batch of an epoch: validation and the ends of the epoch are in the unit.
    (
        "tensorflow",
        [["batch", 11]],
        SMALL | {"validation": True, "others": ["plateau", "counting"]},
        1,
    ),
    ("tensorflow", [["batch", 4]], {"executions": 2, "model": "global-noise"}, 2),
    ("tensorflow", [["batch", 13]], SMALL | {"options": {"log": "weights"}}, 1),
    ("torch", [["batch", 11]], {"others": ["collecting", "stopping"], "optimizer": "adam", "validation": True}, 1),
    ("jax", [["batch", 13]], SMALL | {"jit": True}, 1),
    # A recheck that is killed, before its step and behind it, is a crash like any other.
    ("torch", [["batch", 13], ["batch-begin", 1], ["batch", 1]], {}, 1),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("backend", "deaths", "arguments", "steps"), CASES, indirect=["backend"])
def test_a_unit_that_is_equal_proves_the_resume(
    backend: Lab, deaths: list[list[Any]], arguments: dict[str, Any], steps: int, tmp_path: Path
) -> None:
    _, resumed = prove_exact(backend, tmp_path, [{"die": death} for death in deaths], **arguments)
    report = resumed["report"]
    assert (report["recheck"], report["rechecked"], report["notes"]) == ("equal", steps, ())


@pytest.mark.parametrize("backend", ["tensorflow", campaign.in_soak("torch"), "jax"], indirect=True)
def test_a_counter_that_sets_the_learning_rate_is_named_and_no_step_is_lost(backend: Lab, tmp_path: Path) -> None:
    arguments = {"others": ["global-rate"], "optimizer": "adam", "model": "dense", "jit": backend.backend == "jax"}
    report = _resume(backend, tmp_path / "run", [["batch", 13]], **arguments)["report"]
    assert (report["exact"], report["recheck"], report["step"]) == (False, "different", 12)
    note = next(note for note in report["notes"] if "was computed again" in note)
    assert "(step 12) was computed again, and optimizer/optimizer/adam/learning_rate differs from the record by up to" in note
    assert "keep it as an attribute of a callback" in note
    _demand_replayed(backend, tmp_path / "run")


def test_what_a_unit_deviates_by_is_told_after_the_next_crash(torch: Lab, tmp_path: Path) -> None:
    arguments = {"others": ["global-rate"], "optimizer": "adam", "model": "dense"}
    report = _resume(torch, tmp_path / "run", [["batch", 6], ["batch", 4]], **arguments)["report"]
    assert report["exact"] is False
    assert any("(step 5) was computed again" in note for note in report["notes"]), report["notes"]


def test_times_that_a_callback_measures_are_told_from_other_state(torch: Lab, tmp_path: Path) -> None:
    report = _resume(torch, tmp_path / "run", [["batch", 6]], others=["timing"], model="dense")["report"]
    assert (report["exact"], report["recheck"]) == (None, "different")
    assert "callback.Timing.times" in report["notes"][0]
    assert "All else is equal" in report["notes"][0]


def test_callbacks_that_a_script_drops_and_adds_are_not_compared(torch: Lab, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert torch.run("fit", run=str(run), die=["batch", 6], others=["counting"], model="dense").was_killed
    report = torch.value("fit", run=str(run), others=["timing"], model="dense")["report"]
    assert (report["exact"], report["recheck"]) == (True, "equal")


def test_without_a_recheck_recovery_lands_on_the_newest_boundary(torch: Lab, tmp_path: Path) -> None:
    report = _resume(torch, tmp_path / "run", [["batch", 6]], options={"recheck": False}, model="dense")["report"]
    assert (report["exact"], report["recheck"], report["step"]) == (True, "", 5)


def test_a_fit_that_is_over_is_not_computed_again(torch: Lab, tmp_path: Path) -> None:
    report = _resume(torch, tmp_path / "run", [["train-end", 1]], model="dense")["report"]
    assert report["recheck"] == "equal", "killed before its end was recorded"
    report = torch.value("fit", run=str(tmp_path / "run"), model="dense", epochs=4)["report"]
    assert (report["exact"], report["recheck"], report["step"]) == (True, "", 30)


def test_a_loop_of_ones_own_proves_itself(tensorflow: Lab, torch: Lab, tmp_path: Path) -> None:
    for lab, script, place in (
        (tensorflow, "guide", ["batch", 8]),
        (torch, "torch_guide", ["epoch", 2]),
        *([(tensorflow, "guide", ["epoch", 2]), (torch, "torch_guide", ["batch", 6])] if campaign.is_soak() else []),
    ):
        folder = tmp_path / f"{script}-{place[0]}"
        whole, resumed = run_killed(lab, f"tests.public.keras.own_loop:{script}", folder, [place])
        assert resumed.of("state") == whole.of("state")
        assert (resumed.exact, resumed.recheck) == (True, "equal")
        assert not [note for note in resumed.notes if not note.startswith("printed starts over")], resumed.notes


def test_a_batch_that_waits_in_a_variable_is_named_and_no_step_is_lost(tensorflow: Lab, tmp_path: Path) -> None:
    resumed = resume_killed(tensorflow, "tests.public.keras.own_turns:train", tmp_path, [["step", 6]], how="untracked")
    assert (resumed.exact, resumed.recheck) == (False, "different")
    assert "was computed again, and the gradient of" in resumed.notes[0]
    verified = ask(tensorflow, "verify", tmp_path / "killed" / "run", "--replay")
    assert (verified["problems"], verified["ranks"][0]["replays"][0]["exact"]) == ([], True)
