from __future__ import annotations

from pathlib import Path

import pytest

from tranlogs.rehearsal.judging import mentions_tranlogs, suggest_wrapping
from tranlogs.rehearsal.processes import Life
from tranlogs.rehearsal.rehearse import judge_loss


def life(folder: Path, *steps: int) -> Life:
    folder.mkdir()
    (folder / "stdout").write_text("training\n" + "".join(f"step {step}: loss {1 / (step + 1):.4f}\n" for step in steps))
    return Life(folder, "killed", None)


@pytest.mark.parametrize(
    ("again", "read", "headline"),
    [
        (range(9), [], "starts again from the beginning"),
        (range(5, 14), ["last.pt"], "continues from a checkpoint of its own"),
        (range(9, 14), ["last.pt"], "continues where it was killed"),
        ([], [], "costs this script all that it has done"),
        ([], ["last.pt"], "costs this script at least what it has done since"),
    ],
)
def test_loss_is_read_off_what_two_lives_print(again: range, read: list[str], headline: str, tmp_path: Path) -> None:
    first, second = life(tmp_path / "first", *range(9)), life(tmp_path / "second", *again)
    assert headline in judge_loss(first, second, ["last.pt", "log.txt"], read).headline


def test_file_that_is_read_at_the_end_only_does_not_make_a_script_continue(tmp_path: Path) -> None:
    """Its lines begin with the epoch: that it is the first again says more than a file that was read at some time."""
    lives = []
    for name, epochs in (("first", range(1, 5)), ("second", range(1, 9))):
        lines = [
            f"Train Epoch: {epoch} [{batch}]\tLoss: {1 / (epoch + batch):.4f}\n" for epoch in epochs for batch in (0, 480, 960)
        ]
        (tmp_path / name).mkdir()
        (tmp_path / name / "stdout").write_text("".join(lines))
        lives.append(Life(tmp_path / name, "killed", None))
    loss = judge_loss(*lives, ["best.pt"], ["best.pt"])
    assert loss.headline == "This script starts again from the beginning: a kill costs all that it has done."
    assert loss.notes[-1] == "reading best.pt does not make it continue"
    # Killed within its first epoch, a script that goes on in the middle of it continues.
    (tmp_path / "first" / "stdout").write_text("Train Epoch: 1 [0]\tLoss: 0.9\nTrain Epoch: 1 [480]\tLoss: 0.8\n")
    (tmp_path / "second" / "stdout").write_text("Train Epoch: 1 [480]\tLoss: 0.8\nTrain Epoch: 1 [960]\tLoss: 0.7\n")
    assert "continues from a checkpoint of its own" in judge_loss(*lives, ["best.pt"], ["best.pt"]).headline


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import torch", "optimizer.recover()"),
        ("this is no Python", "for epoch in optimizer.epochs(EPOCHS):"),
        ("import torch\nimport lightning.pytorch as pl", "callbacks=[TranLogsLightningCallback("),
        ("from transformers import Trainer", "callbacks=[TranLogsTrainerCallback("),
        ("from accelerate import Accelerator", "log_prepared(accelerator"),
        ("import keras", 'callbacks=[TranLogsCallback("runs/NAME")]'),
    ],
)
def test_lines_to_add_follow_from_the_imports(source: str, line: str) -> None:
    lines = suggest_wrapping({Path("train.py"): source})
    assert 2 <= len(lines) <= 6
    assert any(line in one for one in lines)


def test_script_is_wrapped_if_a_module_beside_it_is(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text("from tranlogs_torch import LoggedOptimizer")
    assert mentions_tranlogs({tmp_path / "train.py": "import loop"})
    assert not mentions_tranlogs({tmp_path / "train.py": "import other"})
