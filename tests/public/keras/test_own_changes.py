"""What a script sets between `recover()` and a loop of its own holds, is named, and costs no finished step."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab, differences
from tests.keras.test_offline import cli
from tests.keras.tool import ask
from tests.support import campaign

_SCRIPT = "tests.public.keras.own_changes.train"
_NAMES = {  # how the report calls what was changed
    "rate": ["learning_rate"],
    "weights": ["dense", "bias"],
    "moments": ["momentum"],
    "state": ["state.scale", "state.last"],
    "row": ["dense", "kernel"],
}

pytestmark = pytest.mark.crash


def _resume(lab: Lab, run: Path, place: int, changes: list[str], again: int) -> Any:
    """Kill a run in a batch, change things at the next start and kill that, too; return the outcome of the third start."""
    lives = [{"die": ["batch", place]}, {"die": ["batch", again], "changes": changes, "resumes": True}]
    for life in lives:
        ended = lab.run(_SCRIPT, run=str(run), **life)
        assert ended.was_killed, ended.output[-3000:]
    return lab.value(_SCRIPT, run=str(run), die=None)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("backend", ["tensorflow", "torch"], indirect=True)
def test_it_holds_and_no_step_is_lost(backend: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANLOGS_RECHECK", "1")
    draw = random.Random(31)
    single = [[name] for name in _NAMES] if campaign.is_soak() else []
    for number, changes in enumerate([["rate", "weights", "moments", "state", "row", "look"], *single]):
        place = draw.randint(4, 8)
        run = tmp_path / str(number)
        assert backend.run(_SCRIPT, run=str(run), die=["batch", place]).was_killed
        found = backend.value(_SCRIPT, run=str(run), die=None, changes=changes, resumes=True)
        wanted = backend.value(_SCRIPT, run=None, die=None, changes=changes, at=place - 1)
        assert differences(wanted["state"], found["state"]) == [], (place, changes)
        assert wanted["history"] == found["history"], (place, changes)
        assert (found["exact"], found["recheck"], found["step"]) == (None, "", place - 1), found["notes"]
        for name in (name for change in changes for name in _NAMES.get(change, ())):
            assert any(name in note and "was changed between recover() and the first" in note for note in found["notes"])
        words = ("verify", str(run), "--replay")
        verified = cli(*words) if backend.backend == "tensorflow" else ask(backend, *words)
        assert (verified["problems"], verified["ranks"][0]["replays"][0]["exact"]) == ([], True)


def test_after_another_crash_it_is_proven(torch: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANLOGS_RECHECK", "1")
    found = _resume(torch, tmp_path / "run", 6, ["rate", "weights", "state"], again=3)
    wanted = torch.value(_SCRIPT, run=None, die=None, changes=["rate", "weights", "state"], at=5)
    assert differences(wanted["state"], found["state"]) == []
    assert wanted["history"] == found["history"]
    assert (found["exact"], found["recheck"], found["step"]) == (True, "equal", 6), found["notes"]


@pytest.mark.parametrize("change", ["rate", "row"])
def test_a_kill_right_behind_a_change_is_no_difference(
    change: str, torch: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has the change in that unit, and a script that does not make it again cannot compute the unit again."""
    monkeypatch.setenv("TRANLOGS_RECHECK", "1")
    found = _resume(torch, tmp_path / "run", 6, [change], again=2)
    wanted = torch.value(_SCRIPT, run=None, die=None, changes=[change], at=5)
    assert differences(wanted["state"], found["state"]) == []
    assert (found["exact"], found["recheck"], found["step"]) == (None, "", 6), found["notes"]
    assert any("the script had changed weights, hyper-parameters" in note for note in found["notes"]), found["notes"]


def test_what_sets_nothing_new_is_no_change(torch: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANLOGS_RECHECK", "1")
    assert torch.run(_SCRIPT, run=str(tmp_path / "run"), die=["batch", 6]).was_killed
    found = torch.value(_SCRIPT, run=str(tmp_path / "run"), die=None, changes=["look", "same"], resumes=True)
    wanted = torch.value(_SCRIPT, run=None, die=None)
    assert differences(wanted["state"], found["state"]) == []
    assert (found["exact"], found["recheck"], found["notes"]) == (True, "equal", [])
