"""`LoggedOptimizer.steps`: a resume is called exact where what the script keeps between two turns is tracked, or is nothing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab, differences
from tests.public.keras.proof import run_killed
from tranlogs.training import UNKNOWN_DATA

_SCRIPT = "tests.public.keras.own_turns.train"
_ITERATE = "tests.public.keras.own_turns.iterate"


def _places(seed: int) -> list[list[Any]]:
    draw = random.Random(seed)
    return [["step", draw.randint(2, 4)] for _ in range(2)]


@pytest.mark.crash
@pytest.mark.parametrize(("backend", "how"), [("torch", "tracked"), ("tensorflow", "stateless")], indirect=["backend"])
def test_turns_whose_data_are_known_come_back_exactly(backend: Lab, how: str, tmp_path: Path) -> None:
    places = _places(21)
    twin = backend.value(_SCRIPT, run=None, die=None, how=how)
    whole, resumed = run_killed(backend, _SCRIPT, tmp_path, places, how=how)
    for found in (whole, resumed):
        assert differences(twin["state"], found["state"]) == [], places
        assert (found["exact"], found["notes"]) == (True, [])


@pytest.mark.crash
@pytest.mark.parametrize("how", ["untracked", "others"])
def test_a_batch_that_waits_in_a_variable_is_never_called_exact(how: str, torch: Lab, tmp_path: Path) -> None:
    whole, resumed = run_killed(torch, _SCRIPT, tmp_path, _places(22), how=how)
    assert differences(whole["state"], resumed["state"]), "the batch that waited was another"
    for found in (whole, resumed):
        assert (found["exact"], found["notes"]) == (None, [UNKNOWN_DATA])


@pytest.mark.crash
def test_a_declaration_that_is_made_after_the_crash_is_taken(torch: Lab, tmp_path: Path) -> None:
    whole, resumed = run_killed(torch, _SCRIPT, tmp_path, _places(23), how="stateless", declares_late=True)
    assert differences(whole["state"], resumed["state"]) == []
    assert (resumed["exact"], resumed["notes"]) == (True, [])


@pytest.mark.crash
def test_an_iterable_with_a_state_of_its_own_is_never_called_exact(torch: Lab, tmp_path: Path) -> None:
    """Killed in the second of its passes: the first pass of the next process draws what the first one of the run drew."""
    whole, resumed = run_killed(torch, _ITERATE, tmp_path, [["batch", 6]], how="draws of its own")
    assert differences(whole["state"], resumed["state"]), "the iterable began anew"
    for found in (whole, resumed):
        assert found["exact"] is None
        assert ["an iterable of the script's own" in note for note in found["notes"]] == [True]


@pytest.mark.crash
def test_an_iterable_that_draws_from_the_global_generators_may_be_declared(torch: Lab, tmp_path: Path) -> None:
    whole, resumed = run_killed(torch, _ITERATE, tmp_path, [["batch", 6], ["batch", 3]], how="stateless")
    assert differences(whole["state"], resumed["state"]) == []
    assert (resumed["exact"], resumed["notes"]) == (True, [])


@pytest.mark.crash
def test_a_loop_that_ends_by_its_own_break_is_no_accident(torch: Lab, tmp_path: Path) -> None:
    """Nothing is warned of, and a run that is started again computes that turn again, and ends with the same bits."""
    script, run = "tests.public.keras.own_turns.leave", str(tmp_path / "run")
    twin = torch.value(script, run=None, die=None, how="break")
    assert torch.run(script, run=run, die=["step", 4], how="break").was_killed
    for step in (3, 6):
        ended = torch.run(script, run=run, die=None, how="break")
        assert differences(twin["state"], ended.value["state"]) == []
        assert (ended.value["exact"], ended.value["notes"], ended.value["step"]) == (True, [], step)
        assert "in the middle of a batch" not in ended.output
        assert "outside of the loops" not in ended.output
    failed = torch.run(script, run=str(tmp_path / "failed"), die=None, how="exception")
    assert failed.code == 1
    assert "was left in the middle of a batch" in failed.output


def test_the_report_of_a_new_run_says_what_it_writes(torch: Lab, tmp_path: Path) -> None:
    begun = torch.value("tests.public.keras.own_turns.begin", run=str(tmp_path))
    assert begun == "fresh run: step 0 (about 2.1 KiB of log a step; next checkpoint after 4 steps (8.4 KiB of log))"
