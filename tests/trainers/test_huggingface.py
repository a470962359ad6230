"""A Trainer is killed by SIGKILL and made anew: it ends with the bits and the log history of one that nobody killed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support import campaign
from tests.trainers.conftest import FINISHED, Launcher

pytestmark = pytest.mark.crash

EVALUATED: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 4}  # 7 updates an epoch, 21 in all


def test_kills_in_steps_evaluations_and_at_the_edges_of_epochs_leave_no_trace(huggingface: Launcher, tmp_path: Path) -> None:
    chance = campaign.dice()
    kills = [[0, "step end", 7], [0, "epoch end", 1], [0, "evaluation", 12], [0, "step", chance.randrange(13, 20)]]
    print(kills)
    found = huggingface.prove_exact(tmp_path / "run", kills, **EVALUATED, patience=9, metric_for_best_model="loss")
    assert found[0]["report"]["step"] + found[0]["report"]["rechecked"] == kills[-1][2]
    steps = 21 - found[0]["report"]["step"]  # the rates are those of this process
    assert found[0]["report"]["trained"] == pytest.approx([steps, steps * 75 / 21], rel=0.01)
    assert len([entry for entry in found[0]["history"] if "eval_loss" in entry]) == 6


def test_accumulated_gradients_end_where_the_update_did(huggingface: Launcher, tmp_path: Path) -> None:
    kills = [[0, "epoch end", 1], [0, "step", 4], [0, "step", 7]]
    found = huggingface.prove_exact(
        tmp_path / "run",
        kills,
        gradient_accumulation_steps=3,
        eval_strategy="epoch",
        accelerator_config={"use_seedable_sampler": False},
    )
    assert found[0]["global_step"] == 9  # seven batches an epoch: the last update of each takes one
    assert found[0]["report"]["step"] + found[0]["report"]["rechecked"] == 7


def test_early_stopping_and_the_best_model_come_back(huggingface: Launcher, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "save_total_limit": 2,
        "load_best_model_at_end": True,
        "metric_for_best_model": "loss",
        "patience": 3,
        "learning_rate": 0.3,
    }
    kills = [[0, "save", 4], [0, "step", 5], [0, "end", 0]]
    found = huggingface.prove_exact(tmp_path / "run", kills, **options)
    assert found[0]["global_step"] < 21, "early stopping did not stop it"
    assert found[0]["counters"] == [3]
    step = found[0]["global_step"]
    said = huggingface.said()
    found = huggingface.run("train", run=str(tmp_path / "run"), folder=str(tmp_path / "killed"), **options)
    finished = f"run is finished at step {step}, and nothing is trained (for another training, give another folder): "
    assert f"{finished}recovered to step {step} (" in huggingface.said()
    assert re.search(r"run: fresh run: step 0 \(about .* of log a step; next checkpoint after .*\)\n", said)
    assert found[0]["report"]["trained"] == [0.0, 0.0]
    assert found[0]["report"]["end"] == FINISHED


def test_what_a_subclass_counts_and_collects_comes_back(huggingface: Launcher, tmp_path: Path) -> None:
    kills = [[0, "step end", 3], [0, "step", 8], [0, "evaluation", 12], [0, "epoch end", 2]]
    found = huggingface.prove_exact(tmp_path / "run", kills, **EVALUATED, kind="CountingTrainer", logging_steps=4)
    assert [entry["num_tokens"] for entry in found[0]["history"] if "loss" in entry][-1] == 20 * 16 * 4 - 2 * 3 * 16


def test_what_a_subclass_keeps_and_cannot_be_stored_is_named(huggingface: Launcher, tmp_path: Path) -> None:
    found = huggingface.prove_exact(tmp_path / "run", [[0, "step", 8]], exact=None, kind="ForgetfulTrainer")
    assert any("ForgetfulTrainer.newest_batch changes during training" in note for note in found[0]["report"]["notes"])


@pytest.mark.parametrize("counts", ["Lengths", "KeptLengths"])
def test_attributes_of_a_callback_that_start_over_are_named(counts: str, huggingface: Launcher, tmp_path: Path) -> None:
    """A run that begins names them once, and so does a resume; a callback with a state is not named."""
    texts = [
        "Lengths (Lengths) starts over at each start: training changes ended and lengths. To keep them: make ended and "
        "lengths attributes of a TrainerCallback that is also an ExportableState, and return them in state()"
    ]
    texts = texts if counts == "Lengths" else []
    whole = huggingface.run("train", run=str(tmp_path / "fresh"), folder=str(tmp_path / "whole"), counts=counts)
    assert [note for note in whole[0]["report"]["notes"] if "over at each start" in note] == texts
    found = huggingface.prove_exact(tmp_path / "run", [[0, "step", 8]], counts=counts)
    assert [note for note in found[0]["report"]["notes"] if "over at each start" in note] == texts


def test_processes_under_torchrun_leave_no_trace_either(huggingface: Launcher, tmp_path: Path) -> None:
    options: dict[str, Any] = {"gradient_accumulation_steps": 2, "ddp_find_unused_parameters": False, "eval_strategy": "epoch"}
    found = huggingface.prove_exact(tmp_path / "run", [[2, "step", 1], [0, "step", 3]], world=3, **options)
    assert found[0]["report"]["step"] + found[0]["report"]["rechecked"] == 3


def test_what_cannot_be_right_is_refused(huggingface: Launcher, tmp_path: Path) -> None:
    said = huggingface.run("refusals", folder=str(tmp_path))[0]
    assert said.pop("attached") == ""
    parts = {
        "two": "this trainer has two TranLogsTrainerCallbacks",
        "added late": "Call callback.attach(trainer)",
        "skip": "ignore_data_skip=True",
        "batch size": "auto_find_batch_size",
        "checkpoint": "is a new run",
        "nothing yet": "no step has been taken yet",
    }
    assert {name: parts[name] in text for name, text in said.items()} == dict.fromkeys(parts, True), said
