"""What other callbacks of a fit write and keep comes back, or is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab
from tests.keras.proof import Place, prove_exact, resume_killed, run_killed, run_whole, whole_of
from tests.kills.judge import Expected
from tests.support import campaign
from tranlogs.training.recheck_messages import name_missing_unit

pytestmark = pytest.mark.crash


@pytest.mark.parametrize(
    ("backend", "beside", "arguments"),
    [
        ("torch", ["schedule", "batch-rate", "collecting", "losses", "noise"], {}),
        ("torch", ["clamp"], {}),
        campaign.in_soak("torch", ["thaw"], {"model": "sparse"}),  # tests/keras/test_steps.py writes frozen weights
        ("torch", ["ema"], {"optimizer": "adam-ema", "validation": True}),
        *(campaign.in_soak("tensorflow", [one], {"model": "line"}) for one in ("clamp", "batch-rate", "noise", "collecting")),
        campaign.in_soak("tensorflow", ["clamp", "thaw"], {"model": "sparse"}),
        campaign.in_soak("tensorflow", ["ema"], {"optimizer": "adam-ema", "model": "line"}),
    ],
    indirect=["backend"],
    ids=str,
)
def test_what_they_write_and_keep_comes_back(
    backend: Lab, beside: list[str], arguments: dict[str, Any], tmp_path: Path
) -> None:
    """Killed in the middle of an epoch, at its end before the callback's own turn, and in a batch of the next one."""
    places: list[Place] = [["batch", 13], ["before", 1], ["batch", 3]]
    count = 3 if backend.backend == "torch" and (len(beside) > 2 or campaign.is_soak()) else 2
    prove_exact(backend, "fits:fit", tmp_path, places[:count], beside=beside, by_batch=True, **arguments)


def test_early_stopping_ends_the_run_for_good_with_the_best_weights(torch: Lab, tmp_path: Path) -> None:
    about: dict[str, Any] = {"beside": ["stopping"], "epochs": 9}
    last = prove_exact(torch, "fits:fit", tmp_path, [["before", 1], ["batch", 5]], **about)
    again = run_whole(torch, "fits:fit", tmp_path / "killed", **about)
    assert again.differences(last) == []
    again.heard.demand_end()


@pytest.mark.parametrize(
    ("backend", "places"),
    [
        ("torch", [["between", 1], ["batch", 1], ["batch", 11]]),  # in the first batch of the second fit, then of the third one
        campaign.in_soak("tensorflow", [["batch", 11], ["batch", 11]]),
        campaign.in_soak("jax", [["batch", 11], ["batch", 11]]),
    ],
    indirect=["backend"],
    ids=str,
)
def test_callbacks_that_fits_share_go_on_where_a_later_fit_had_begun(backend: Lab, places: list[Place], tmp_path: Path) -> None:
    """What the fits before have changed is state. In the first batch of a fit there is no unit that could prove a resume."""
    expected = Expected(unproven=name_missing_unit(is_logged=True))
    prove_exact(backend, "fits:shared_callbacks", tmp_path, places, expected=expected)


@pytest.mark.parametrize("beside", ["meter", "meter that stands still"])
def test_an_object_that_cannot_be_stored_is_named_if_it_changes(beside: str, torch: Lab, tmp_path: Path) -> None:
    resumed = resume_killed(torch, "fits:fit", tmp_path, [["batch", 12]], beside=[beside], model="line")
    assert any("Metering.meter" in note for note in resumed.notes) is (beside == "meter"), resumed.notes
    assert resumed.exact is (None if beside == "meter" else True)


def test_state_that_cannot_be_told_leaves_fit_running_and_is_named(torch: Lab, tmp_path: Path) -> None:
    found = run_whole(torch, "fits:fit", tmp_path, beside=["cyclic"])
    assert found.of("model") == whole_of(torch, "fits:fit", tmp_path / "plain").of("model")
    assert any("Cyclic.held has changed, and is of a kind that cannot be stored" in note for note in found.notes)
    assert found.exact is None


def test_an_object_that_cannot_be_read_leaves_fit_running_to_its_end(torch: Lab, tmp_path: Path) -> None:
    plain = run_whole(torch, "fits:fit", tmp_path / "plain", data="numbered")
    found = run_whole(torch, "fits:fit", tmp_path / "found", data="numbered-unreadable")
    assert any("logging is suspended" in text for text in found.heard.warnings)
    assert (found.of("model"), found.of("history")) == (plain.of("model"), plain.of("history"))


@pytest.mark.parametrize(
    "fails",
    ["log.before_commit=eio@9+", campaign.in_soak("log.write=enospc@5"), campaign.in_soak("checkpoint.state=enospc@2+")],
)
def test_a_failing_disk_leaves_fit_running(fails: str, torch: Lab, tmp_path: Path) -> None:
    found = run_whole(torch, "fits:fit", tmp_path, fails=fails)
    assert found.heard.warnings
    assert found.of("model") == whole_of(torch, "fits:fit", tmp_path / "plain").of("model")


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
    assert more.differences(run_whole(torch, "fits:fit", tmp_path / "whole", epochs=3, **about)) == []
