"""Random generators and variables of a script's own callbacks come back; what cannot be stored is named if it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.keras.lab import Lab
from tests.public.keras.proof import prove_exact, resume_killed, run_whole
from tests.support import campaign

SCRIPT = "tests.public.keras.callbacks:train"


@pytest.mark.crash
@pytest.mark.parametrize("backend", ["tensorflow", campaign.in_soak("torch")], indirect=True)
def test_generators_and_variables_of_a_callback_come_back(backend: Lab, tmp_path: Path) -> None:
    """Killed in the middle of an epoch and at an end, before and behind the callback's own turn."""
    places = [["batch", 12], ["before", 1], ["batch", 4]]
    prove_exact(backend, SCRIPT, tmp_path, places if campaign.is_soak() else places[:2])


@pytest.mark.crash
def test_long_lists_of_losses_come_back(torch: Lab, tmp_path: Path) -> None:
    prove_exact(torch, f"{SCRIPT}_with_losses", tmp_path, [["batch", 3], ["batch", 7], ["before", 1], ["batch", 4]])


@pytest.mark.crash
@pytest.mark.parametrize("counts", [True, False])
def test_an_object_that_cannot_be_stored_is_named_if_it_changes(counts: bool, torch: Lab, tmp_path: Path) -> None:
    resumed = resume_killed(torch, SCRIPT, tmp_path, [["batch", 12]], counts=counts)
    assert any("Counting.meter" in note for note in resumed.notes) is counts, resumed.notes
    assert resumed.exact is (None if counts else True)


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
