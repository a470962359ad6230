"""A Lightning Trainer is killed by SIGKILL and made anew: it ends with the bits and the counters of one that nobody killed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support import campaign
from tests.trainers.conftest import FINISHED, Launcher

pytestmark = pytest.mark.crash

CASES: list[tuple[list[Any], dict[str, Any]]] = [  # seven batches an epoch, three epochs
    (
        [[0, "validation", 2], [0, "batch", 7], [0, "epoch end", 1], [0, "step", 18]],
        {"schedule": "plateau", "val_check_interval": 2, "data": "noisy", "gradient_clip_val": 0.5},
    ),
    (
        [[0, "batch", 1], [0, "batch", 8], [0, "step", 4]],
        {"accumulate_grad_batches": 3, "schedule": "epoch", "check_val_every_n_epoch": 2},
    ),
    ([[0, "batch", 7]], {"mode": "two", "max_epochs": -1, "max_steps": 25}),
    ([[0, "batch", 6], [0, "epoch end", 1]], {"data": "stream", "schedule": "epoch"}),
    ([[0, "step", 9], [0, "validation", 21]], {"patience": 2, "saves": True, "max_epochs": 9, "schedule": "plateau"}),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kills", "options"),
    [campaign.in_soak(*case) if "accumulate_grad_batches" in case[1] else case for case in CASES],
    ids=["plateau", "accumulation", "two", "stream", "stopping"],
)
def test_kills_leave_no_trace(lightning: Launcher, tmp_path: Path, kills: list[Any], options: dict[str, Any]) -> None:
    chance = campaign.dice()
    if options.get("mode") == "two":  # manual optimization
        kills = [*kills, [0, "batch", chance.randrange(8, 15)]]
    found = lightning.prove_exact(tmp_path / "run", kills, **options)
    if "patience" in options:
        assert found[0]["epoch"] < options["max_epochs"], "early stopping did not stop it"


@pytest.mark.sampled(0)
def test_processes_under_torchrun_leave_no_trace_either(lightning: Launcher, tmp_path: Path) -> None:
    kills = [[2, "step", 3], [0, "epoch end", 1]]
    lightning.prove_exact(tmp_path / "run", kills, world=3, strategy="ddp", schedule="epoch", val_check_interval=3)


def test_metrics_averaged_over_an_epoch_are_named(lightning: Launcher, tmp_path: Path) -> None:
    found = lightning.prove_exact(tmp_path / "run", [[0, "batch", 10]], averages=True, exact=None)
    assert any("step_loss" in note and "averaged over an epoch" in note for note in found[0]["report"]["notes"])


def test_what_a_callback_alone_keeps_is_named_and_a_schedule_of_accumulation_goes_on(
    lightning: Launcher, tmp_path: Path
) -> None:
    found = lightning.prove_exact(tmp_path / "run", [[0, "batch", 12]], scheduled=True, keeps=True, exact=None)
    notes = found[0]["report"]["notes"]
    assert (
        [note for note in notes if "on_save_checkpoint" in note] == [note for note in notes if note.startswith("Keeps.")] != []
    )


def test_what_a_module_collects_and_averages_in_attributes_comes_back(lightning: Launcher, tmp_path: Path) -> None:
    lightning.prove_exact(tmp_path / "run", [[0, "batch", 4], [0, "epoch end", 1], [0, "batch", 17]], kind="Collecting")


def test_an_attribute_that_changes_and_cannot_be_stored_is_named(lightning: Launcher, tmp_path: Path) -> None:
    found = lightning.prove_exact(tmp_path / "run", [[0, "batch", 10]], kind="Forgetful", exact=None)
    notes = found[0]["report"]["notes"]
    assert [note.partition(" ")[0] for note in notes if "cannot be stored" in note] == ["Forgetful.meter"]


def test_what_a_callback_counts_comes_back_or_is_named(lightning: Launcher, tmp_path: Path) -> None:
    """A run that begins names it once, and so does a resume."""
    texts = {
        "Counts.meter changes during training and cannot be stored, so it starts over in a resumed process",
        "ended starts over at each start. To keep it: make it an attribute of the LightningModule or of a callback",
    }
    whole = lightning.run("train", run=str(tmp_path / "fresh"), folder=str(tmp_path / "whole"), counts=True)
    notes = [note.partition(". Keep")[0] for note in whole[0]["report"]["notes"] if " over " in note]
    assert (set(notes), len(notes)) == (texts, 2)
    found = lightning.prove_exact(tmp_path / "run", [[0, "batch", 10]], counts=True, exact=None)
    notes = [note.partition(". Keep")[0] for note in found[0]["report"]["notes"] if " over " in note]
    assert (set(notes), len(notes)) == (texts, 2)


def test_a_restart_says_each_thing_once_and_keeps_the_best_models(lightning: Launcher, tmp_path: Path) -> None:
    whole = lightning.run("told", run=None, folder=str(tmp_path / "whole"), kills=[])[0]
    found = lightning.run("told", run=str(tmp_path / "run"), folder=str(tmp_path / "killed"), kills=[[0, "batch", 17]])[0]
    assert found["checkpoints"] == whole["checkpoints"]
    said = "\n".join(found["lines"])
    for noise in ("barebones", "not resumable", "dirpath has changed"):
        assert noise not in said
    begun = lightning.run("told", run=str(tmp_path / "new"), folder=str(tmp_path / "new files"), kills=[])[0]["starts"][0]
    assert re.fullmatch(rf"TranLogs: {tmp_path / 'new'}: fresh run: step 0 \(about .* of log a step; next .*\)\n", begun), begun
    resumed, finished = found["starts"]
    assert resumed.startswith(f"TranLogs: {tmp_path / 'run'} goes on at step 16: recovered to step 16 (")
    assert finished.startswith(f"TranLogs: {tmp_path / 'run'} is finished at step 28, and nothing is trained (for another ")
    assert found["end"] == FINISHED
    assert (said + resumed).count("Keeps.on_save_checkpoint") == 1


def test_what_cannot_be_right_is_refused(lightning: Launcher, tmp_path: Path) -> None:
    said = lightning.run("refusals", folder=str(tmp_path))[0]
    parts = {"two": "has two TranLogsLightningCallbacks", "two loaders": "one training loader", "checkpoint": "ckpt_path"}
    assert {name: parts[name] in text for name, text in said.items()} == dict.fromkeys(parts, True), said
