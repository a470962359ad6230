"""What a script sets between `recover()` and a loop of its own holds, is named, and costs no finished step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.keras.lab import Lab, differences
from tests.keras.test_offline import cli
from tests.keras.tool import ask
from tests.kills.judge import Life
from tests.public.keras.proof import kill, run_whole
from tests.support import campaign

_SCRIPT = "tests.public.keras.own_changes:train"
_NAMES = {  # how the report calls what was changed
    "rate": ["learning_rate"],
    "weights": ["dense", "bias"],
    "moments": ["momentum"],
    "state": ["state.scale", "state.last"],
    "row": ["dense", "kernel"],
}

pytestmark = pytest.mark.crash


def _resume(lab: Lab, folder: Path, place: int, changes: list[str], again: int) -> Life:
    """Kill a run in a batch, change things at the next start and kill that, too; return what the third start came to."""
    kill(lab, _SCRIPT, folder, ["batch", place])
    kill(lab, _SCRIPT, folder, ["batch", again], changes=changes, resumes=True)
    return run_whole(lab, _SCRIPT, folder)


def _right(lab: Lab, folder: Path, changes: Sequence[str] = (), at: int = -1) -> Life:
    """Return what a script without TranLogs comes to that makes the changes before a batch."""
    return run_whole(lab, _SCRIPT, folder / "twin", is_logged=False, changes=list(changes), at=at)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("backend", ["tensorflow", "torch"], indirect=True)
def test_it_holds_and_no_step_is_lost(backend: Lab, tmp_path: Path) -> None:
    draw = random.Random(31)
    single = [[name] for name in _NAMES] if campaign.is_soak() else []
    for number, changes in enumerate([["rate", "weights", "moments", "state", "row", "look"], *single]):
        place = draw.randint(4, 8)
        folder = tmp_path / str(number)
        kill(backend, _SCRIPT, folder, ["batch", place])
        found = run_whole(backend, _SCRIPT, folder, changes=changes, resumes=True)
        wanted = _right(backend, folder, changes, at=place - 1)
        assert differences(wanted.of("state"), found.of("state")) == [], (place, changes)
        assert wanted.of("history") == found.of("history"), (place, changes)
        assert (found.exact, found.recheck, found.step) == (None, "", place - 1), found.notes
        for name in (name for change in changes for name in _NAMES.get(change, ())):
            assert any(name in note and "was changed between recover() and the first" in note for note in found.notes)
        words = ("verify", str(folder / "run"), "--replay")
        verified = cli(*words) if backend.backend == "tensorflow" else ask(backend, *words)
        assert (verified["problems"], verified["ranks"][0]["replays"][0]["exact"]) == ([], True)


def test_after_another_crash_it_is_proven(torch: Lab, tmp_path: Path) -> None:
    found = _resume(torch, tmp_path, 6, ["rate", "weights", "state"], again=3)
    wanted = _right(torch, tmp_path, ["rate", "weights", "state"], at=5)
    assert differences(wanted.of("state"), found.of("state")) == []
    assert wanted.of("history") == found.of("history")
    assert (found.exact, found.recheck, found.step) == (True, "equal", 6), found.notes


@pytest.mark.parametrize("change", ["rate", "row"])
def test_a_kill_right_behind_a_change_is_no_difference(change: str, torch: Lab, tmp_path: Path) -> None:
    """The log has the change in that unit, and a script that does not make it again cannot compute the unit again."""
    found = _resume(torch, tmp_path, 6, [change], again=2)
    wanted = _right(torch, tmp_path, [change], at=5)
    assert differences(wanted.of("state"), found.of("state")) == []
    assert (found.exact, found.recheck, found.step) == (None, "", 6), found.notes
    assert any("the script had changed weights, hyper-parameters" in note for note in found.notes), found.notes


def test_what_sets_nothing_new_is_no_change(torch: Lab, tmp_path: Path) -> None:
    kill(torch, _SCRIPT, tmp_path, ["batch", 6])
    found = run_whole(torch, _SCRIPT, tmp_path, changes=["look", "same"], resumes=True)
    wanted = _right(torch, tmp_path)
    assert differences(wanted.of("state"), found.of("state")) == []
    assert (found.exact, found.recheck, found.notes) == (True, "equal", [])
