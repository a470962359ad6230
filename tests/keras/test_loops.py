"""Training loops of one's own, killed anywhere, end with the bits of the script left alone, or say why they may not."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab
from tests.keras.proof import (
    Place,
    demand_deviation,
    end,
    kill,
    prove_exact,
    resume_killed,
    run_killed,
    run_whole,
)
from tests.support import campaign
from tranlogs.training import UNKNOWN_DATA

pytestmark = pytest.mark.crash


# In the style of Keras's guides.


@pytest.mark.parametrize(("backend", "script"), [("torch", "torch_guide"), ("tensorflow", "compiled")], indirect=["backend"])
def test_a_guide_ends_with_the_bits_of_its_twin(backend: Lab, script: str, tmp_path: Path) -> None:
    draw = random.Random(f"{script} {campaign.seed()}")
    places: list[Place] = [["batch", draw.randint(6, 8)], ["epoch", 1]]
    count = 2 if backend.backend == "torch" or campaign.is_soak() else 1
    prove_exact(backend, f"loops:{script}", tmp_path, places[:count], with_twin=True)


def test_a_killed_run_of_a_loop_is_replayed_without_its_script(torch: Lab, tmp_path: Path) -> None:
    """Each step is redone and compared with its fingerprint; the weights of one model are written for Keras."""
    run, out = tmp_path / "run", tmp_path / "state.weights.h5"
    kill(torch, "loops:torch_guide", tmp_path, ["batch", 8])
    _demand_replayed(torch.ask("verify", run, "--replay"), steps=7)
    replayed = torch.ask("replay", run, "--out", out)
    assert (replayed["step"], replayed["exact"]) == (7, True)
    assert any("the optimizer is not in the file" in note for note in replayed["notes"]), replayed
    assert torch.value("loops.has_recovered_weights", run=str(run), path=str(out))


def test_a_killed_run_of_two_optimizers_is_replayed_without_its_script(tensorflow: Lab, tmp_path: Path) -> None:
    run = tmp_path / "run"
    kill(tensorflow, "loops:compiled", tmp_path, ["batch", 8])
    _demand_replayed(tensorflow.ask("verify", run, "--replay"), steps=14)
    code, _, errors = tensorflow.call("replay", run, "--out", tmp_path / "state.weights.h5")
    assert code == 2
    assert "the run trains 2 models in a loop of one's own" in " ".join(errors.split())


def _demand_replayed(verified: dict[str, Any], *, steps: int) -> None:
    assert verified["problems"] == []
    (found,) = verified["ranks"][0]["replays"]
    assert (found["step"], found["exact"], found["first_divergent_step"]) == (steps, True, None)
    assert found["replayed"]


def test_a_metric_that_nobody_tracks_is_named(torch: Lab, tmp_path: Path) -> None:
    resumed = resume_killed(torch, "loops:torch_guide", tmp_path, [["batch", 8]], tracks=False)
    assert resumed.exact is None
    assert any("the loop writes sparse_categorical_accuracy" in note for note in resumed.notes), resumed.notes


def test_a_variable_that_nobody_tracks_is_found_and_no_other_object_is_asked_for_its_class(torch: Lab) -> None:
    said = torch.value("inside.changed_variables")
    assert said["found"] == [[], ["one"], [], ["late"]]
    assert (said["warned"], said["asked"]) == ([], 0)


# What a loop keeps between two turns.


@pytest.mark.parametrize(
    ("script", "about"),
    [
        ("turns", {"how": "tracked"}),
        ("remember", {}),
    ],  # the latter: rows that wait, generators, a mean of gradients, last losses
    ids=str,
)
def test_turns_whose_data_are_known_come_back(script: str, about: dict[str, Any], torch: Lab, tmp_path: Path) -> None:
    prove_exact(torch, f"loops:{script}", tmp_path, [["step", 6], ["step", 4]], with_twin=True, **about)


@pytest.mark.parametrize(
    ("script", "about", "places"),
    [
        ("count", {}, [["step", 3], ["step", 6]]),  # batches are counted after a crash, and sums go on
        # Loops with code between them.
        ("sequence", {}, [["step", 5], ["between", 1], ["step", 3], ["step", 3]]),
        ("left", {"limit": 5}, [["step", 6]]),  # in the first step of the second loop: the one before the `break` is committed
    ],
    ids=str,
)
def test_loops_come_back(script: str, about: dict[str, Any], places: list[Place], torch: Lab, tmp_path: Path) -> None:
    last = prove_exact(torch, f"loops:{script}", tmp_path, places, **about)
    if script == "sequence":
        longer = run_whole(torch, "loops:sequence", tmp_path / "killed", last=4)
        new = [line for line in longer.printed if line not in last.printed]
        assert new == longer.printed[-2:], "turns 2 and 3 of the third"


def test_a_loop_that_ends_by_its_own_break_is_no_accident(torch: Lab, tmp_path: Path) -> None:
    """Nothing is warned of, and a run that is started again computes that turn again, and ends with the same bits."""
    twin = run_whole(torch, "loops:stop", tmp_path / "twin", is_logged=False, how="break")
    kill(torch, "loops:stop", tmp_path, ["step", 4], how="break")
    for step in (2, 6):
        ended = run_whole(torch, "loops:stop", tmp_path, how="break")
        assert ended.of("state") == twin.of("state")
        assert (ended.exact, ended.notes, ended.step) == (True, [], step)
        assert ended.heard.warnings == [], "neither of a batch that was left in its middle nor of steps outside of the loops"
    status, said = end(torch, "loops:stop", tmp_path / "failed", how="exception")
    assert status == 1
    assert "was left in the middle of a batch" in said


def test_a_batch_that_waits_in_a_variable_is_never_called_exact(torch: Lab, tmp_path: Path) -> None:
    """And no step is lost."""
    whole, resumed = run_killed(torch, "loops:turns", tmp_path, [["step", 6], ["step", 4]], how="untracked")
    assert (whole.exact, whole.notes[0]) == (None, UNKNOWN_DATA)
    assert [note.partition(":")[0] for note in whole.notes[1:]] == ["waiting (Waiting) starts over at each start"]
    demand_deviation(resumed)
    _demand_replayed(torch.ask("verify", tmp_path / "killed" / "run", "--replay"), steps=12)


def test_a_declaration_that_is_made_after_the_crash_is_taken(torch: Lab, tmp_path: Path) -> None:
    whole, resumed = run_killed(torch, "loops:turns", tmp_path, [["step", 5]], how="stateless", declares_late=True)
    assert whole.of("state") == resumed.of("state")
    assert (resumed.exact, resumed.notes) == (True, [])


def test_an_iterable_with_a_state_of_its_own_is_never_called_exact(torch: Lab, tmp_path: Path) -> None:
    """Killed in the second of its passes: the first pass of the next process draws what the first one of the run drew."""
    whole, resumed = run_killed(torch, "loops:iterate", tmp_path, [["step", 7]])
    assert whole.of("state") != resumed.of("state"), "the iterable began anew"
    assert whole.exact is None
    assert sum("an iterable of the script's own" in note for note in whole.notes) == 1
    demand_deviation(resumed)


def test_steps_outside_of_all_loops_are_named_unless_they_are_few_and_a_loop_follows(torch: Lab, tmp_path: Path) -> None:
    said = "a step was taken outside of the loops"
    whole, resumed = run_killed(torch, "loops:warm_up", tmp_path / "few", [["step", 9]], steps=5)
    assert whole.of("state") == resumed.of("state")
    for found in (whole, resumed):
        assert (found.exact, found.notes) == (True, [])
    printed = kill(torch, "loops:warm_up", tmp_path / "many", ["step", 14], steps=20)
    assert printed.count(said) == 1, "a fresh run says so"
    ended = run_whole(torch, "loops:warm_up", tmp_path / "many", steps=20)
    demand_deviation(ended)  # the loop of the script begins anew, with other rows
    assert any(said in note for note in ended.notes), ended.notes


# What a script sets on purpose between `recover()` and the loop.

_NAMES = {  # how the report calls what was changed
    "rate": ["learning_rate"],
    "weights": ["dense", "bias"],
    "moments": ["momentum"],
    "state": ["state.scale", "state.last"],
    "row": ["dense", "kernel"],
}
EVERYTHING = (*_NAMES, "look")


def test_what_a_script_sets_stands_from_where_recovery_landed(torch: Lab, tmp_path: Path) -> None:
    kill(torch, "loops:change", tmp_path, ["step", 6])
    found = run_whole(torch, "loops:change", tmp_path, changes=EVERYTHING, resumes=True)
    wanted = run_whole(torch, "loops:change", tmp_path / "twin", is_logged=False, changes=EVERYTHING, at=4)
    assert (wanted.of("state"), wanted.of("history")) == (found.of("state"), found.of("history"))
    assert (found.exact, found.recheck, found.step) == (None, "", 4), found.notes
    assert any(note.startswith("step 5 is trained again with what the script has changed") for note in found.notes)
    for name in (name for names in _NAMES.values() for name in names):
        assert any(name in note and "was changed between recover() and the first" in note for note in found.notes)
    _demand_replayed(torch.ask("verify", tmp_path / "run", "--replay"), steps=12)


@pytest.mark.parametrize(("changes", "again", "repeats"), [(("rate", "weights", "state"), 3, False), (("rate",), 2, True)])
def test_a_crash_after_a_change_loses_nothing_more(
    changes: tuple[str, ...], again: int, repeats: bool, torch: Lab, tmp_path: Path
) -> None:
    """The unit that the change is in is not computed again: the log does not have what the script has set before it."""
    kill(torch, "loops:change", tmp_path, ["step", 6])
    kill(torch, "loops:change", tmp_path, ["step", again], changes=changes, resumes=True)
    found = run_whole(torch, "loops:change", tmp_path, changes=changes if repeats else (), resumes=True)
    assert (found.exact, found.recheck, found.step) == ((None, "", 5) if repeats else (True, "equal", 5)), found.notes
    assert any("the script had changed weights, hyper-parameters" in note for note in found.notes) is (again == 2)
    wanted = run_whole(torch, "loops:change", tmp_path / "twin", is_logged=False, changes=changes, at=4)
    assert (wanted.of("state"), wanted.of("history")) == (found.of("state"), found.of("history"))


def test_what_sets_nothing_new_is_no_change(torch: Lab, tmp_path: Path) -> None:
    kill(torch, "loops:change", tmp_path, ["step", 6])
    found = run_whole(torch, "loops:change", tmp_path, changes=("look", "same"), resumes=True)
    assert found.of("state") == run_whole(torch, "loops:change", tmp_path / "twin", is_logged=False).of("state")
    assert (found.exact, found.recheck, found.notes) == (True, "equal", [])


# Wrong uses.


def test_a_wrong_use_is_refused_with_what_to_do(torch: Lab, tmp_path: Path) -> None:
    found = torch.value("loops.refusals", run=str(tmp_path))
    words = {
        "no optimizer": "expected an optimizer of keras.optimizers, not a str",
        "no model": "model= must be a Keras model or a list of models, got None",
        "wrapped twice": "this optimizer is logged already; wrap the plain one",
        "logged already": "close that LoggedOptimizer first",
        "tracked": "track(thing=...): a object has no state that can be stored",
        "tracked, unstorable": "track['holder']['x']",
        "tracked twice": "track(numbers=...): another object is tracked under this name already",
        "other variables": "which is no trainable variable of the model that was given with this optimizer",
        "no bound": "batches() outside of epochs() needs until=...",
        "range": "optimizer.epochs(3, ...) yields the numbers from 0 on, and leaves finished epochs out. The numbers of",
        "nested": "one loop of LoggedOptimizer runs inside another",
        "unbuilt": "Call the model once on a batch before the loop",
        "torch's given to Keras's": "Optimizers of torch.optim are logged by tranlogs_torch.LoggedOptimizer",
        "Keras's given to torch's": "got the Keras optimizer Adam. Optimizers of Keras are logged by tranlogs_keras",
        "a nested one of Keras's": "got the Keras optimizer LossScaleOptimizer. Optimizers of Keras are logged by",
    }
    assert found.keys() == words.keys()
    assert {name: text for name, text in found.items() if words[name] not in text} == {}


def test_a_stateless_loop_on_jax_is_refused_by_name(jax: Lab, tmp_path: Path) -> None:
    found = jax.value("loops.refusals", run=str(tmp_path))
    assert "not supported on the Keras backend 'jax'" in found["no model"]


def test_an_object_that_is_tracked_under_another_name_is_named(torch: Lab, tmp_path: Path) -> None:
    notes = torch.value("loops.renamed", run=str(tmp_path / "run"))
    for name in ("noise", "dropout"):
        assert any(f"'{name}' was tracked by the run or is tracked now, and not both" in note for note in notes), notes


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
    found = torch.value("loops.values", run=str(tmp_path / "run"))
    assert [text.partition(": ")[2][: len(word)] for text, word in zip(found, words, strict=True)] == words


def test_the_report_of_a_new_run_says_what_it_writes(torch: Lab, tmp_path: Path) -> None:
    begun = torch.value("loops.begin", run=str(tmp_path))
    assert begun.startswith("fresh run: step 0 (the first steps measure ")
    assert " KiB costs more than 5 % of a step; checkpoints: the next one after 4 steps)" in begun
