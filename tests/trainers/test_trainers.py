"""A trainer is killed by SIGKILL and made anew: it ends with the bits, counters and log of one that nobody killed, proven."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support import campaign
from tests.support.examples import shortened
from tests.trainers.conftest import FINISHED, Launcher
from tranlogs.training import describe_not_computed
from tranlogs.training.recheck_messages import NOTHING_RECORDED

pytestmark = pytest.mark.crash

# Hugging Face's Trainer: 7 updates an epoch, 21 in all.


def test_huggingface_comes_back_in_steps_evaluations_and_at_the_edges_of_epochs(huggingface: Launcher, tmp_path: Path) -> None:
    """With what a subclass counts and collects, as trl's SFTTrainer does, and what a callback has in its state()."""
    kills = [[0, "step end", 7], [0, "epoch end", 1], [0, "evaluation", 12], [0, "step", campaign.dice().randrange(13, 20)]]
    kills = kills if campaign.is_soak() else kills[1:]
    options = {"eval_strategy": "steps", "eval_steps": 4, "logging_steps": 4, "metric_for_best_model": "loss"}
    run = tmp_path / "run"
    found = huggingface.prove_exact(run, kills, **options, patience=9, kind="CountingTrainer", counts="KeptLengths")[0]
    report = found["report"]
    assert report["step"] + report["rechecked"] == kills[-1][2]
    steps = 21 - report["step"]  # the rates are those of this process
    assert report["trained"] == pytest.approx([steps, steps * 75 / 21], rel=0.01)
    assert len([entry for entry in found["history"] if "eval_loss" in entry]) == 6
    assert [entry["num_tokens"] for entry in found["history"] if "loss" in entry][-1] == 20 * 16 * 4 - 2 * 3 * 16
    assert not [note for note in report["notes"] if "over at each start" in note]


def test_huggingface_accumulates_in_processes_under_torchrun(huggingface: Launcher, tmp_path: Path) -> None:
    options: dict[str, Any] = {"gradient_accumulation_steps": 2, "ddp_find_unused_parameters": False, "eval_strategy": "epoch"}
    found = huggingface.prove_exact(
        tmp_path / "run", [[1, "step", 1], [0, "step", 3]][not campaign.is_soak() :], world=2, **options
    )
    assert found[0]["report"]["step"] + found[0]["report"]["rechecked"] == 3


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
    step = found[0]["global_step"]
    assert step < 21, "early stopping did not stop it"
    assert found[0]["counters"] == [3]
    forecast = r"run: fresh run: step 0 \(the first steps measure .*; checkpoints: the next one after .*\)\n"
    assert re.search(forecast, huggingface.said())
    found = huggingface.run("train", run=str(tmp_path / "run"), folder=str(tmp_path / "killed"), **options)
    finished = f"run is finished at step {step}, and nothing is trained (for another training, give another folder): "
    assert f"{finished}recovered to step {step} (" in huggingface.said()
    assert found[0]["report"]["trained"] == [0.0, 0.0]
    assert found[0]["report"]["end"] == FINISHED


def test_what_huggingfaces_trainer_and_callbacks_do_not_keep_is_named(huggingface: Launcher, tmp_path: Path) -> None:
    """A run that begins names attributes of a callback once, and so does a resume."""
    text = (
        "Lengths (Lengths) starts over at each start: training changes ended and lengths. To keep them: make ended and "
        "lengths attributes of a TrainerCallback that is also an ExportableState, and return them in state()"
    )
    options = {"kind": "ForgetfulTrainer", "counts": "Lengths"}
    whole = huggingface.run("train", run=str(tmp_path / "fresh"), folder=str(tmp_path / "whole"), **options)
    found = huggingface.prove_exact(tmp_path / "run", [[0, "step", 8]], exact=None, **options)
    for notes in (whole[0]["report"]["notes"], found[0]["report"]["notes"]):
        assert [note for note in notes if "over at each start" in note] == [text]
    assert any("ForgetfulTrainer.newest_batch changes during training" in note for note in found[0]["report"]["notes"])


# Lightning: seven batches an epoch, three epochs.

CASES: list[tuple[list[Any], dict[str, Any]]] = [
    (
        [[0, "validation", 2], [0, "epoch end", 1], [0, "step", 18]],
        {"schedule": "plateau", "val_check_interval": 2, "data": "noisy", "gradient_clip_val": 0.5, "kind": "Collecting"},
    ),
    ([[0, "batch", 7], [0, "batch", 12]], {"mode": "two", "max_epochs": -1, "max_steps": 25}),  # manual optimization
    ([[0, "step", 9], [0, "validation", 21]], {"patience": 2, "saves": True, "max_epochs": 9, "schedule": "plateau"}),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kills", "options"), CASES, ids=["plateau", "two", "stopping"])
def test_lightning_comes_back_from_kills(
    lightning: Launcher, tmp_path: Path, kills: list[Any], options: dict[str, Any]
) -> None:
    """In the first case also with what a module collects and averages in attributes."""
    found = lightning.prove_exact(tmp_path / "run", kills, **options)
    if "patience" in options:
        assert found[0]["epoch"] < options["max_epochs"], "early stopping did not stop it"


@pytest.mark.soak  # as under Hugging Face's Trainer
def test_lightning_comes_back_in_processes_under_torchrun(lightning: Launcher, tmp_path: Path) -> None:
    kills = [[2, "step", 3], [0, "epoch end", 1]]
    lightning.prove_exact(tmp_path / "run", kills, world=3, strategy="ddp", schedule="epoch", val_check_interval=3)


def test_what_lightnings_modules_and_callbacks_do_not_keep_is_named(lightning: Launcher, tmp_path: Path) -> None:
    """A run that begins names what starts over once, and so does a resume. Its schedule of accumulation goes on."""
    texts = {
        "Counts.meter changes during training and cannot be stored, so it starts over in a resumed process",
        "Forgetful.meter changes during training and cannot be stored, so it starts over in a resumed process",
        "ended starts over at each start. To keep it: make it an attribute of the LightningModule or of a callback",
    }
    options = {"counts": True, "keeps": True, "scheduled": True, "averages": True, "kind": "Forgetful"}
    whole = lightning.run("train", run=str(tmp_path / "fresh"), folder=str(tmp_path / "whole"), **options)
    found = lightning.prove_exact(tmp_path / "run", [[0, "batch", 13]], exact=None, **options)
    for notes in (whole[0]["report"]["notes"], found[0]["report"]["notes"]):
        over = [note.partition(". Keep")[0] for note in notes if " over " in note and "averaged" not in note]
        assert (set(over), len(over)) == (texts, 3)
    notes = found[0]["report"]["notes"]
    assert any("step_loss" in note and "averaged over an epoch" in note for note in notes)
    kept = [note for note in notes if "on_save_checkpoint" in note]
    assert kept == [note for note in notes if note.startswith("Keeps.")] != []


def test_a_restart_of_lightning_says_each_thing_once_and_keeps_the_best_models(lightning: Launcher, tmp_path: Path) -> None:
    whole = lightning.run("told", run=None, folder=str(tmp_path / "whole"), kills=[])[0]
    found = lightning.run("told", run=str(tmp_path / "run"), folder=str(tmp_path / "killed"), kills=[[0, "batch", 17]])[0]
    assert found["checkpoints"] == whole["checkpoints"]
    said = "\n".join(found["lines"])
    for noise in ("barebones", "not resumable", "dirpath has changed"):
        assert noise not in said
    resumed, finished = found["starts"]
    assert resumed.startswith(f"TranLogs: {tmp_path / 'run'} goes on at step 16: recovered to step 16 (")
    assert finished.startswith(f"TranLogs: {tmp_path / 'run'} is finished at step 28, and nothing is trained (for another ")
    assert found["end"] == FINISHED
    assert (said + resumed).count("Keeps.on_save_checkpoint") == 1


# A loop that accelerate has prepared: seven batches an epoch, three epochs.


def test_a_loop_of_accelerate_comes_back_from_kills(accelerate: Launcher, tmp_path: Path) -> None:
    kills = [[0, "batch", 7], [0, "epoch end", 1], [0, "batch", campaign.dice().randrange(14, 21)]]
    report = accelerate.prove_exact(tmp_path / "run", kills)[0]["report"]
    assert report["batch"] == report["step"] == kills[-1][2] - report["rechecked"]


def test_a_loop_of_accelerate_loses_the_batches_since_the_last_update(accelerate: Launcher, tmp_path: Path) -> None:
    kills = [[0, "batch", 4], [0, "batch", 13]]
    report = accelerate.prove_exact(tmp_path / "run", kills, accumulation=3, seedable=True)[0]["report"]
    assert report["step"] + report["rechecked"] == 5  # three steps an epoch: after 3, 6 and all 7 batches
    assert report["batch"] == 10


@pytest.mark.soak  # as under Hugging Face's Trainer, which uses accelerate
def test_a_loop_of_accelerate_comes_back_in_processes_under_torchrun(accelerate: Launcher, tmp_path: Path) -> None:
    accelerate.prove_exact(tmp_path / "run", [[2, "batch", 2], [0, "batch", 7]], world=3, accumulation=2)


def test_batches_of_accelerate_are_counted_as_they_are_trained(accelerate: Launcher, tmp_path: Path) -> None:
    found = accelerate.run("counted", folder=str(tmp_path))[0]
    assert found["taken"] == [4, 6, 6]
    assert found["batches"] == [0, 4, 10]
    assert "log_prepared" in found["refused"]


@pytest.mark.parametrize("framework", ["huggingface", "lightning"])
def test_what_cannot_be_right_is_refused(framework: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    launcher: Launcher = request.getfixturevalue(framework)
    said = launcher.run("refusals", folder=str(tmp_path))[0]
    parts = {
        "huggingface": {
            "attached": "",
            "two": "this trainer has two TranLogsTrainerCallbacks",
            "added late": "Call callback.attach(trainer)",
            "skip": "ignore_data_skip=True",
            "batch size": "auto_find_batch_size",
            "checkpoint": "is a new run",
            "nothing yet": "no step has been taken yet",
        },
        "lightning": {
            "two": "has two TranLogsLightningCallbacks",
            "two loaders": "one training loader",
            "checkpoint": "ckpt_path",
        },
    }[framework]
    assert {name: parts[name] in text for name, text in said.items()} == dict.fromkeys(parts, True), said
    assert said.get("attached", "") == ""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("framework", "script", "epochs", "signs", "end"),
    [
        ("lightning", "lightning_trainer", 4, ["epoch 1:", "epoch 2:"], "done: 188 steps, however often"),
        (
            "huggingface",
            "huggingface_trainer",
            2,
            ["'loss':", "eval_loss"],
            "done: 120 steps, evaluations .*, .*, however often",
        ),
        ("accelerate", "accelerate_loop", 4, ["epoch 0:", "epoch 1:"], "done: 228 losses, however often"),
    ],
    ids=["lightning", "huggingface", "accelerate"],
)
def test_a_killed_example_ends_with_the_bits_and_the_lines_of_its_twin(
    framework: str, script: str, epochs: int, signs: list[str], end: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    launcher: Launcher = request.getfixturevalue(framework)
    file = shortened(script, tmp_path, EPOCHS=epochs)
    draw = random.Random(f"{script} {campaign.seed()}")
    kills = [(sign, int(3_000 ** draw.random())) for sign in signs]
    function, path = "tests.trainers.common.example", str(file)
    twin = launcher.run(function, kills=[], path=path, folder=str(tmp_path / "twin"))[0]
    last = launcher.run(function, kills=kills, path=path, folder=str(tmp_path / "killed"))[0]
    recovered = re.search(r"recovered to step (\d+) \(.* (bit-exact|being proven|not verified)\)", str(last["lines"]))
    assert recovered is not None, last["lines"]
    assert int(recovered[1]) > 0
    unproven = describe_not_computed(NOTHING_RECORDED)  # the kill came right behind a checkpoint
    proof = unproven if recovered[2] == "not verified" else "equal to those before the crash, bit for bit"
    assert any(proof in line for line in last["lines"]), last["lines"]
    assert last["model"] == twin["model"], kills
    others = ("recovered to", "computed again", "runtime", "of a step, and 5 % are allowed")
    told = [line for line in last["lines"] if not any(words in line for words in others)]
    assert set(told) <= set(twin["lines"]), kills
    assert re.match(end, told[-1]), told
    assert len(told) < len(twin["lines"]) - 1, "it began anew"
