"""`LoggedOptimizer.steps`: a resume is called exact where what the script keeps between two turns is tracked, or is nothing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab, differences
from tests.kills.job import Start
from tests.kills.launchers import Server
from tests.public.keras.proof import demand_deviation, kill, run_killed, run_whole
from tests.support import campaign
from tranlogs.training import UNKNOWN_DATA

_SCRIPT = "tests.public.keras.own_turns:train"
_REMEMBER = "tests.public.keras.own_turns:remember"
_COUNT = "tests.public.keras.own_turns:count"
_ITERATE = "tests.public.keras.own_turns:iterate"


def _places(seed: int) -> list[list[Any]]:
    draw = random.Random(seed)
    return [["step", draw.randint(2, 4)] for _ in range(2)]


def _places_on(backend: Lab, seed: int) -> list[list[Any]]:
    """Return the first of them on TensorFlow, in the gate: each process compiles there."""
    return _places(seed)[: None if backend.backend == "torch" or campaign.is_soak() else 1]


@pytest.mark.sampled(1)
@pytest.mark.crash
@pytest.mark.parametrize(("backend", "how"), [("torch", "tracked"), ("tensorflow", "stateless")], indirect=["backend"])
def test_turns_whose_data_are_known_come_back_exactly(backend: Lab, how: str, tmp_path: Path) -> None:
    places = _places_on(backend, 21)
    twin = run_whole(backend, _SCRIPT, tmp_path / "twin", is_logged=False, how=how)
    whole, resumed = run_killed(backend, _SCRIPT, tmp_path, places, how=how)
    for found in (whole, resumed):
        assert differences(twin.of("state"), found.of("state")) == [], places
        assert (found.exact, found.notes) == (True, [])


@pytest.mark.crash
@pytest.mark.parametrize("how", ["untracked", "others"])
def test_a_batch_that_waits_in_a_variable_is_never_called_exact(how: str, torch: Lab, tmp_path: Path) -> None:
    whole, resumed = run_killed(torch, _SCRIPT, tmp_path, [["step", 5], ["step", 4]], how=how)
    assert (whole.exact, whole.notes[0]) == (None, UNKNOWN_DATA)
    assert [note.partition(":")[0] for note in whole.notes[1:]] == ["waiting (Waiting) starts over at each start"]
    demand_deviation(resumed)


@pytest.mark.crash
def test_a_declaration_that_is_made_after_the_crash_is_taken(torch: Lab, tmp_path: Path) -> None:
    whole, resumed = run_killed(torch, _SCRIPT, tmp_path, _places(23), how="stateless", declares_late=True)
    assert differences(whole.of("state"), resumed.of("state")) == []
    assert (resumed.exact, resumed.notes) == (True, [])


@pytest.mark.crash
def test_an_iterable_with_a_state_of_its_own_is_never_called_exact(torch: Lab, tmp_path: Path) -> None:
    """Killed in the second of its passes: the first pass of the next process draws what the first one of the run drew."""
    whole, resumed = run_killed(torch, _ITERATE, tmp_path, [["batch", 6]], how="draws of its own")
    assert differences(whole.of("state"), resumed.of("state")), "the iterable began anew"
    assert whole.exact is None
    assert sum("an iterable of the script's own" in note for note in whole.notes) == 1
    demand_deviation(resumed)


@pytest.mark.crash
def test_an_iterable_that_draws_from_the_global_generators_may_be_declared(torch: Lab, tmp_path: Path) -> None:
    whole, resumed = run_killed(torch, _ITERATE, tmp_path, [["batch", 6], ["batch", 3]], how="stateless")
    assert differences(whole.of("state"), resumed.of("state")) == []
    assert resumed.exact is True
    assert all(note.startswith("data (Drawing) starts over") for note in resumed.notes), "what counts its draws does"


@pytest.mark.crash
@pytest.mark.parametrize("backend", ["torch", "tensorflow"], indirect=True)
def test_what_a_loop_remembers_comes_back_exactly(backend: Lab, tmp_path: Path) -> None:
    """Rows and weights that wait, generators, a mean of gradients, the last losses."""
    places = _places_on(backend, 24)
    twin = run_whole(backend, _REMEMBER, tmp_path / "twin", is_logged=False)
    whole, resumed = run_killed(backend, _REMEMBER, tmp_path, places)
    for found in (whole, resumed):
        assert differences(twin.of("state"), found.of("state")) == [], places
        assert found.of("history") == twin.of("history")
        assert (found.exact, found.notes) == (True, [])


@pytest.mark.crash
@pytest.mark.parametrize("how", ["epoch", "batches of an epoch", "run"])
def test_batches_are_counted_after_a_crash_and_sums_of_an_epoch_go_on(how: str, torch: Lab, tmp_path: Path) -> None:
    whole, resumed = run_killed(torch, _COUNT, tmp_path, [["batch", 3], ["batch", 6]], how=how)
    assert differences(whole.of("state"), resumed.of("state")) == []
    assert whole.of("history") == resumed.of("history")
    assert (resumed.exact, resumed.notes) == (True, [])


def test_what_cannot_be_remembered_or_tracked_is_refused_by_its_path(torch: Lab, tmp_path: Path) -> None:
    words = [
        "state.replay[1]['fn'] is a function, which cannot be stored",
        "state.x['a'][0] contains itself",
        "state.x[0] is too much: remembered values may take 64 MiB",
        "state.layer is a Dense, which has variables. Track it",
        "state.seeds[0] is a SeedGenerator, which has variables. Track it",
        "track['best']['a'][0] contains itself",
        "remember() must come before recover()",
    ]
    found = torch.value("tests.public.keras.own_turns.refuse", run=str(tmp_path / "run"))
    assert [text[: len(word)] for text, word in zip(found, words, strict=True)] == words


def test_a_loop_that_ends_by_its_own_break_is_no_accident(torch: Lab, tmp_path: Path) -> None:
    """Nothing is warned of, and a run that is started again computes that turn again, and ends with the same bits.

    After the kill one turn more is computed again; a script that came to its end has none to prove.
    """
    script = "tests.public.keras.own_turns:leave"
    twin = run_whole(torch, script, tmp_path / "twin", is_logged=False, how="break")
    kill(torch, script, tmp_path, ["step", 4], how="break")
    for step in (2, 6):
        ended = run_whole(torch, script, tmp_path, how="break")
        assert differences(twin.of("state"), ended.of("state")) == []
        assert (ended.exact, ended.notes, ended.step) == (True, [], step)
        assert ended.heard.warnings == [], "neither of a batch that was left in its middle nor of steps outside of the loops"
    failed = Server(torch)
    folder = tmp_path / "failed"
    start = Start(failed.job, script, folder, folder / "run", None, {}, {"how": "exception"})
    assert failed.run(start) == 1
    assert "was left in the middle of a batch" in failed.said()


def test_the_report_of_a_new_run_says_what_it_writes(torch: Lab, tmp_path: Path) -> None:
    begun = torch.value("tests.public.keras.own_turns.begin", run=str(tmp_path))
    assert begun.startswith("fresh run: step 0 (about 2.1 KiB of log a step; next checkpoint after 4 steps (8.4 KiB of log); ")


@pytest.mark.crash
def test_steps_outside_of_all_loops_are_named_unless_they_are_few_and_a_loop_follows(torch: Lab, tmp_path: Path) -> None:
    script, said = "tests.public.keras.own_turns:warm_up", "a step was taken outside of the loops"
    whole, resumed = run_killed(torch, script, tmp_path / "few", [["step", 9]], steps=5)
    assert differences(whole.of("state"), resumed.of("state")) == []
    for found in (whole, resumed):
        assert (found.exact, found.notes) == (True, [])
    printed = kill(torch, script, tmp_path / "many", ["step", 13], steps=20)
    assert printed.count(said) == 1, "a fresh run says so"
    ended = run_whole(torch, script, tmp_path / "many", steps=20)
    demand_deviation(ended)  # the loop of the script begins anew, with other rows
    assert any(said in note for note in ended.notes), ended.notes
