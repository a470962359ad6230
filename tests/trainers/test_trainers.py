"""A trainer is killed by SIGKILL and made anew: it ends with the bits, counters and log of one that nobody killed, proven."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.kills.judge import finish, killed, prove_deaths
from tests.kills.launchers import PYTORCH, Launcher, Torchrun
from tests.kills.pytorch import Death, Expected, Life, Script, finished
from tests.support import campaign, launcher
from tests.support.examples import shortened
from tests.trainers.common import example
from tranlogs.training import describe_not_computed
from tranlogs.training.recheck_messages import NOTHING_RECORDED

pytestmark = pytest.mark.crash

FINISHED = "the run is finished, and nothing is trained (for another training, give another folder)"
OPTIONS: dict[str, Any] = {"checkpoint_every": 5}


def told(folder: Path) -> dict[str, Any]:
    """Return what a life told besides its outcome."""
    found: dict[str, Any] = json.loads((folder / "told").read_text())
    return found


def prove(
    script: Script, folder: Path, deaths: Sequence[Death], expected: Expected | None = None, *, by: Launcher = PYTORCH
) -> list[Life]:
    """Let a script die, and go on; the outcome is that of a training without a log that nobody killed, and proven."""
    twins = finish(script, folder / "twin", launcher=by)
    lives = prove_deaths(script, folder / "killed", twins, deaths, expected or Expected(), launcher=by, **OPTIONS)
    for life in lives:
        assert life.step > 0, "nothing was recovered"
        assert life.recheck == "equal"
    return lives


def own(script: Script, folder: Path) -> dict[str, Any]:
    """Return what a script tells that is not killed, and logs by itself."""
    finished(script, folder, folder / "run")
    return told(folder)


# Hugging Face's Trainer: 7 updates an epoch, 21 in all.


def test_huggingface_comes_back_in_steps_evaluations_and_at_the_edges_of_epochs(
    huggingface: ModuleType, tmp_path: Path
) -> None:
    """With what a subclass counts and collects, as trl's SFTTrainer does, and what a callback has in its state()."""
    step = campaign.dice().randrange(13, 20)
    places = ["step end 7", "epoch end 1", "evaluation 12", f"step {step}"][not campaign.is_soak() :]
    options = {"eval_strategy": "steps", "eval_steps": 4, "logging_steps": 4, "metric_for_best_model": "loss", "patience": 9}
    script = partial(huggingface.train, **options, kind=huggingface.CountingTrainer, counts=huggingface.KeptLengths)
    (life,) = prove(script, tmp_path, [Death(place) for place in places])
    found = told(tmp_path / "killed")
    assert life.step + found["rechecked"] == step
    steps = 21 - life.step  # the rates are those of this process
    assert found["trained"] == pytest.approx([steps, steps * 75 / 21], rel=0.01)
    assert len([entry for entry in found["history"] if "eval_loss" in entry]) == 6
    assert [entry["num_tokens"] for entry in found["history"] if "loss" in entry][-1] == 20 * 16 * 4 - 2 * 3 * 16
    assert not [note for note in life.notes if "over at each start" in note]


def test_huggingface_accumulates_in_processes_under_torchrun(
    huggingface: ModuleType, processes: launcher.Launcher, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"gradient_accumulation_steps": 2, "ddp_find_unused_parameters": False, "eval_strategy": "epoch"}
    deaths = [Death("step 1", rank=1), Death("step 3")][not campaign.is_soak() :]
    lives = prove(partial(huggingface.train, **options), tmp_path, deaths, by=Torchrun(processes, 2))
    assert lives[0].step + told(tmp_path / "killed" / "rank0")["rechecked"] == 3


def test_early_stopping_and_the_best_model_come_back(huggingface: ModuleType, tmp_path: Path) -> None:
    options: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    options |= {"save_total_limit": 2, "load_best_model_at_end": True, "metric_for_best_model": "loss"}
    script = partial(huggingface.train, **options, patience=3, learning_rate=0.3)
    (life,) = prove(script, tmp_path, [Death("save 4"), Death("step 5"), Death("end")])
    (step,) = (int(value) for _, value in life.of("global_step").values())
    assert step < 21, "early stopping did not stop it"
    assert life.of("counters")["['counters'][0]"] == ("int", "3")
    again = finished(script, tmp_path / "killed", tmp_path / "killed" / "run", **OPTIONS)
    finished_at = f"run is finished at step {step}, and nothing is trained (for another training, give another folder): "
    assert any(f"{finished_at}recovered to step {step} (" in line for line in again.heard.lines), again.heard.lines
    assert told(tmp_path / "killed")["trained"] == [0.0, 0.0]
    assert told(tmp_path / "killed")["end"] == FINISHED


def test_what_huggingfaces_trainer_and_callbacks_do_not_keep_is_named(huggingface: ModuleType, tmp_path: Path) -> None:
    """A run that begins names attributes of a callback once, and so does a resume."""
    text = (
        "Lengths (Lengths) starts over at each start: training changes ended and lengths. To keep them: make ended and "
        "lengths attributes of a TrainerCallback that is also an ExportableState, and return them in state()"
    )
    lost = "ForgetfulTrainer.newest_batch changes during training"
    script = partial(huggingface.train, kind=huggingface.ForgetfulTrainer, counts=huggingface.Lengths)
    whole = finished(script, tmp_path / "whole", tmp_path / "whole" / "run", **OPTIONS)
    (life,) = prove(script, tmp_path, [Death("step 8")], Expected(exact=None, because=lost))
    for notes in (whole.notes, life.notes):
        assert [note for note in notes if "over at each start" in note] == [text]


# Lightning: seven batches an epoch, three epochs.

CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "plateau": (
        ["validation 2", "epoch end 1", "step 18"],
        {"schedule": "plateau", "val_check_interval": 2, "data": "noisy", "gradient_clip_val": 0.5},
    ),
    "two": (["batch 7", "batch 12"], {"mode": "two", "max_epochs": -1, "max_steps": 25}),  # manual optimization
    "stopping": (["step 9", "validation 21"], {"saves": True, "max_epochs": 9, "schedule": "plateau"}),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_lightning_comes_back_from_kills(name: str, lightning: ModuleType, tmp_path: Path) -> None:
    """In the first case also with what a module collects and averages in attributes."""
    places, options = CASES[name]
    if name == "plateau":
        options = options | {"kind": lightning.Collecting}
    elif name == "stopping":
        options = options | {"beside": (partial(lightning.EarlyStopping, "val_loss", patience=2, min_delta=0.2),)}
    (life,) = prove(partial(lightning.train, **options), tmp_path, [Death(place) for place in places])
    epoch = int(life.of("progress")["['progress'][1]"][1])
    assert name != "stopping" or epoch < options["max_epochs"], "early stopping did not stop it"


@pytest.mark.soak  # as under Hugging Face's Trainer
def test_lightning_comes_back_in_processes_under_torchrun(
    lightning: ModuleType, processes: launcher.Launcher, tmp_path: Path
) -> None:
    script = partial(lightning.train, strategy="ddp", schedule="epoch", val_check_interval=3)
    prove(script, tmp_path, [Death("step 3", rank=2), Death("epoch end 1")], by=Torchrun(processes, 3))


def test_what_lightnings_modules_and_callbacks_do_not_keep_is_named(lightning: ModuleType, tmp_path: Path) -> None:
    """A run that begins names what starts over once, and so does a resume. Its schedule of accumulation goes on."""
    texts = {
        "Counts.meter changes during training and cannot be stored, so it starts over in a resumed process",
        "Forgetful.meter changes during training and cannot be stored, so it starts over in a resumed process",
        "ended starts over at each start. To keep it: make it an attribute of the LightningModule or of a callback",
    }
    accumulating = partial(lightning.pl.callbacks.GradientAccumulationScheduler, {0: 1, 1: 3})
    beside = (accumulating, lightning.Keeps, lightning.Counts)
    script = partial(lightning.train, kind=lightning.Forgetful, averages=True, beside=beside)
    whole = finished(script, tmp_path / "whole", tmp_path / "whole" / "run", **OPTIONS)
    (life,) = prove(script, tmp_path, [Death("batch 13")], Expected(exact=None, because="Forgetful.meter"))
    for notes in (whole.notes, life.notes):
        over = [note.partition(". Keep")[0] for note in notes if " over " in note and "averaged" not in note]
        assert (set(over), len(over)) == (texts, 3)
    assert any("step_loss" in note and "averaged over an epoch" in note for note in life.notes)
    kept = [note for note in life.notes if "on_save_checkpoint" in note]
    assert kept == [note for note in life.notes if note.startswith("Keeps.")] != []


def test_a_restart_of_lightning_says_each_thing_once_and_keeps_the_best_models(lightning: ModuleType, tmp_path: Path) -> None:
    folder, run = tmp_path / "killed", tmp_path / "killed" / "run"
    finished(lightning.told, tmp_path / "whole")
    assert killed(lightning.told, folder, Death("batch 17")) < 0
    finished(lightning.told, folder, run)
    found = told(folder)
    assert found["checkpoints"] == told(tmp_path / "whole")["checkpoints"]
    said = "\n".join(found["lines"])
    for noise in ("barebones", "not resumable", "dirpath has changed"):
        assert noise not in said
    resumed, ended = found["starts"]
    assert resumed.startswith(f"TranLogs: {run} goes on at step 16: recovered to step 16 (")
    assert ended.startswith(f"TranLogs: {run} is finished at step 28, and nothing is trained (for another ")
    assert found["end"] == FINISHED
    assert (said + resumed).count("Keeps.on_save_checkpoint") == 1


# A loop that accelerate has prepared: seven batches an epoch, three epochs.


def test_a_loop_of_accelerate_comes_back_from_kills(accelerate: ModuleType, tmp_path: Path) -> None:
    batch = campaign.dice().randrange(14, 21)
    (life,) = prove(accelerate.train, tmp_path, [Death("batch 7"), Death("epoch end 1"), Death(f"batch {batch}")])
    found = told(tmp_path / "killed")
    assert found["batch"] == life.step == batch - found["rechecked"]


def test_a_loop_of_accelerate_loses_the_batches_since_the_last_update(accelerate: ModuleType, tmp_path: Path) -> None:
    script = partial(accelerate.train, accumulation=3, seedable=True)
    (life,) = prove(script, tmp_path, [Death("batch 4"), Death("batch 13")])
    found = told(tmp_path / "killed")
    assert life.step + found["rechecked"] == 5  # three steps an epoch: after 3, 6 and all 7 batches
    assert found["batch"] == 10


@pytest.mark.soak  # as under Hugging Face's Trainer, which uses accelerate
def test_a_loop_of_accelerate_comes_back_in_processes_under_torchrun(
    accelerate: ModuleType, processes: launcher.Launcher, tmp_path: Path
) -> None:
    deaths = [Death("batch 2", rank=2), Death("batch 7")]
    prove(partial(accelerate.train, accumulation=2), tmp_path, deaths, by=Torchrun(processes, 3))


def test_batches_of_accelerate_are_counted_as_they_are_trained(accelerate: ModuleType, tmp_path: Path) -> None:
    found = own(accelerate.counted, tmp_path)
    assert found["taken"] == [4, 6, 6]
    assert found["batches"] == [0, 4, 10]
    assert "log_prepared" in found["refused"]


REFUSED = {
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
}


@pytest.mark.parametrize("framework", REFUSED)
def test_what_cannot_be_right_is_refused(framework: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    said = own(request.getfixturevalue(framework).refusals, tmp_path)
    parts = REFUSED[framework]
    assert {name: parts[name] in text for name, text in said.items()} == dict.fromkeys(parts, True), said
    assert said.get("attached", "") == ""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("framework", "name", "epochs", "signs", "end"),
    [
        ("lightning", "lightning_trainer", 4, ("epoch 1:", "epoch 2:"), "done: 188 steps, however often"),
        (
            "huggingface",
            "huggingface_trainer",
            2,
            ("'loss':", "eval_loss"),
            "done: 120 steps, evaluations .*, .*, however often",
        ),
        ("accelerate", "accelerate_loop", 4, ("epoch 0:", "epoch 1:"), "done: 228 losses, however often"),
    ],
    ids=["lightning", "huggingface", "accelerate"],
)
def test_a_killed_example_ends_with_the_bits_and_the_lines_of_its_twin(
    framework: str, name: str, epochs: int, signs: tuple[str, ...], end: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    request.getfixturevalue(framework)
    script = partial(example, path=str(shortened(name, tmp_path, EPOCHS=epochs)), signs=signs)
    draw, folder = random.Random(f"{name} {campaign.seed()}"), tmp_path / "killed"
    twin = finished(script, tmp_path / "twin")
    deaths = [Death(sign, calls=int(3_000 ** draw.random())) for sign in signs]
    for death in deaths:
        assert killed(script, folder, death) < 0
    before = len((folder / "printed").read_text().splitlines())
    last = finished(script, folder)
    lines = last.printed[before:]
    recovered = re.search(r"recovered to step (\d+) \(.* (bit-exact|being proven|not verified)\)", str(lines))
    assert recovered is not None, lines
    assert int(recovered[1]) > 0
    unproven = describe_not_computed(NOTHING_RECORDED)  # the kill came right behind a checkpoint
    proof = unproven if recovered[2] == "not verified" else "equal to those before the crash, bit for bit"
    assert any(proof in line for line in lines), lines
    assert last.of("model") == twin.of("model"), deaths
    others = ("recovered to", "computed again", "runtime", "of a step, and 5 % are allowed")
    told = [line for line in lines if not any(words in line for words in others)]
    assert set(told) <= set(twin.printed), deaths
    assert re.match(end, told[-1]), told
    assert len(told) < len(twin.printed) - 1, "it began anew"
