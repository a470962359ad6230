from __future__ import annotations

from pathlib import Path

import pytest

from tranlogs.rehearsal.advice import mentions_tranlogs, suggest_wrapping
from tranlogs.rehearsal.processes.process_life import Life
from tranlogs.rehearsal.unwrapped import judge_loss


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


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import torch", "optimizer.recover()"),
        ("import torch\nimport lightning.pytorch as pl", "callbacks=[TranLogsLightningCallback("),
        ("from transformers import Trainer", "callbacks=[TranLogsTrainerCallback("),
        ("import torch\nfrom stable_baselines3 import PPO", 'callback=TranLogsSB3Callback("runs/NAME")'),
        ("from accelerate import Accelerator", "log_prepared(accelerator"),
        ("import keras", 'callbacks=[TranLogsCallback("runs/NAME")]'),
    ],
)
def test_lines_to_add_follow_from_the_imports(source: str, line: str) -> None:
    lines = suggest_wrapping({Path("train.py"): source})
    assert 2 <= len(lines) <= 5
    assert any(line in one for one in lines)


def test_script_is_wrapped_if_a_module_beside_it_is(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text("from tranlogs_torch import LoggedOptimizer")
    assert mentions_tranlogs({tmp_path / "train.py": "import loop"})
    assert not mentions_tranlogs({tmp_path / "train.py": "import other"})
