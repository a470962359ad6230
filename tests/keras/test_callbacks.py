"""What other callbacks of a fit write and keep comes back, or is named: the newest unit before a crash is computed again, and
equals its record, or what differs is named. (Equal units are in every proof of this folder.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab
from tests.keras.proof import Place, kill, prove_exact, resume_killed, run_killed, run_whole, whole_of
from tests.kills.judge import Expected
from tranlogs.training.recheck_messages import name_missing_unit

pytestmark = pytest.mark.crash


@pytest.mark.parametrize(
    ("beside", "arguments"),
    [
        (["schedule", "batch-rate", "collecting", "losses", "noise"], {}),
        (["clamp"], {}),
        (["ema"], {"optimizer": "adam-ema", "validation": True}),
    ],
    ids=str,
)
def test_what_they_write_and_keep_comes_back(beside: list[str], arguments: dict[str, Any], torch: Lab, tmp_path: Path) -> None:
    """Killed in the middle of an epoch, and at its end before the callback's own turn."""
    prove_exact(torch, "fits:fit", tmp_path, [["batch", 13], ["before", 1]], beside=beside, by_batch=True, **arguments)


def test_early_stopping_ends_the_run_for_good_with_the_best_weights(torch: Lab, tmp_path: Path) -> None:
    about: dict[str, Any] = {"beside": ["stopping"], "epochs": 9}
    last = prove_exact(torch, "fits:fit", tmp_path, [["before", 1], ["batch", 5]], **about)
    again = run_whole(torch, "fits:fit", tmp_path / "killed", **about)
    assert again.differences(last) == []
    again.heard.demand_end()


def test_callbacks_that_fits_share_go_on_where_a_later_fit_had_begun(torch: Lab, tmp_path: Path) -> None:
    """What the fits before have changed is state. In the first batch of a fit there is no unit that could prove a resume."""
    expected = Expected(unproven=name_missing_unit(is_logged=True))
    places: list[Place] = [
        ["between", 1],
        ["batch", 1],
        ["batch", 11],
    ]  # before and in the second fit, and in the third
    prove_exact(torch, "fits:shared_callbacks", tmp_path, places, expected=expected)


@pytest.mark.parametrize("beside", ["meter", "meter that stands still"])
def test_an_object_that_cannot_be_stored_is_named_if_it_changes(beside: str, torch: Lab, tmp_path: Path) -> None:
    resumed = resume_killed(torch, "fits:fit", tmp_path, [["batch", 12]], beside=[beside], model="line")
    assert any("Metering.meter" in note for note in resumed.notes) is (beside == "meter"), resumed.notes
    assert resumed.exact is (None if beside == "meter" else True)


def test_state_that_cannot_be_stored_leaves_fit_running_and_is_named(torch: Lab, tmp_path: Path) -> None:
    """Of a callback, and of the data."""
    found = run_whole(torch, "fits:fit", tmp_path, beside=["cyclic"], data="numbered-unstorable")
    for name in ("Cyclic.held", "Unstorable.held"):
        assert any(f"{name} has changed, and is of a kind that cannot be stored" in note for note in found.notes), found.notes
    assert found.exact is None
    assert found.of("model") == whole_of(torch, "fits:fit", tmp_path / "plain", data="numbered").of("model")


@pytest.mark.parametrize("fault", [{"data": "numbered-unreadable"}, {"fails": "log.before_commit=eio@9+"}], ids=str)
def test_an_object_that_cannot_be_read_and_a_failing_disk_leave_fit_running(
    fault: dict[str, str], torch: Lab, tmp_path: Path
) -> None:
    found = run_whole(torch, "fits:fit", tmp_path / "found", **({"data": "numbered"} | fault))
    assert any("logging is suspended" in text for text in found.heard.warnings)
    plain = whole_of(torch, "fits:fit", tmp_path, data="numbered")
    assert (found.of("model"), found.of("history")) == (plain.of("model"), plain.of("history"))


def test_a_list_of_the_module_that_a_callback_appends_to_is_named(torch: Lab, tmp_path: Path) -> None:
    """In an attribute it comes back: that is `losses` above."""
    text = "losses starts over at each start. To keep it: make it an attribute of a callback of this fit"
    about: dict[str, Any] = {"beside": ["curve"], "by_batch": True}
    whole, last = run_killed(torch, "fits:fit", tmp_path, [["boundary.after", 16]], **about)
    for life in (whole, last):
        assert [note for note in life.notes if "over at each start" in note] == [text]
    assert last.exact is True, "the state is, and the word for it says no more"
    assert {path.partition("]")[0] for path in last.differences(whole)} == {"['losses'"}


def test_a_model_beside_the_fit_is_named_and_its_variables_come_back_as_attributes(torch: Lab, tmp_path: Path) -> None:
    line = "make each variable of average.variables an attribute of a callback of this fit, by setattr"
    whole, last = run_killed(torch, "fits:averaged", tmp_path / "lost", [["boundary.after", 6]], keeps=False)
    for life in (whole, last):
        assert [line in note for note in life.notes if "over at each start" in note] == [True], life.notes
    assert {path.partition("]")[0] for path in last.differences(whole)} == {"['average'"}
    prove_exact(torch, "fits:averaged", tmp_path / "kept", [["boundary.after", 6]], keeps=True)


def test_rows_that_others_append_to_the_table_of_a_finished_fit_stay(torch: Lab, tmp_path: Path) -> None:
    script, files = "tests.public.keras.scripts.many_callbacks:train", tmp_path / "files"
    run_whole(torch, script, tmp_path)
    table = (files / "table.csv").read_bytes()
    with (files / "appended.csv").open("a") as file:
        file.write("a row of another script\n")
    appended = (files / "appended.csv").read_bytes()
    run_whole(torch, script, tmp_path)
    assert (files / "table.csv").read_bytes() == table
    assert (files / "appended.csv").read_bytes() == appended


def test_event_files_of_former_processes_are_cut_to_what_the_boundary_holds(torch: Lab, tmp_path: Path) -> None:
    assert torch.value("inside.cut_event_files", folder=str(tmp_path)) == {
        "former": 40,
        "former, in the second in which this process began": 40,
        "former, with the number of this process": 40,
        "former, made after the boundary": None,
        "this process": 90,
        "another training": 90,
    }


def test_a_finished_run_trains_nothing_and_more_epochs_go_on(torch: Lab, tmp_path: Path) -> None:
    """Random numbers are left as before, too: those that Keras makes a seed of while it trains, and those of the data."""
    about: dict[str, Any] = {"data": "generator", "model": "global-noise"}
    first, again = (run_whole(torch, "fits:fit", tmp_path / "run", epochs=2, **about) for _ in range(2))
    assert again.differences(first) == []
    again.heard.demand_end()
    more = run_whole(torch, "fits:fit", tmp_path / "run", epochs=3, **about)
    assert (more.exact, more.recheck) == (True, ""), "a fit that is over is not computed again"
    assert more.differences(run_whole(torch, "fits:fit", tmp_path / "whole", epochs=3, **about)) == []


# The unit that is computed again.


def test_a_counter_that_sets_the_learning_rate_is_named_and_no_step_is_lost(torch: Lab, tmp_path: Path) -> None:
    about: dict[str, Any] = {"beside": ["global-rate"], "model": "line"}
    found = resume_killed(torch, "fits:fit", tmp_path, [["batch", 13]], **about)
    assert (found.exact, found.recheck, found.step) == (False, "different", 12)
    note = next(note for note in found.notes if "was computed again" in note)
    assert "(step 12) was computed again, and optimizer/optimizer/adam/learning_rate differs from the record by up to" in note
    assert "keep it as an attribute of a callback" in note
    verified = torch.ask("verify", tmp_path / "killed/run", "--replay")
    (replayed,) = verified["ranks"][0]["replays"]
    assert verified["problems"] == []
    assert (replayed["step"], replayed["exact"]) == (30, True), "each step follows from the one before"


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
