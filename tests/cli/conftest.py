"""A tiny run of PyTorch, and the command line called in this process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tranlogs.cli import main
from tranlogs_torch import LoggedOptimizer

STEPS = 9


def train(
    run: Path, until: int = STEPS, say: Callable[[int], None] = lambda step: None, *, target: int | None = None
) -> nn.Module:
    """A run with two groups, a scheduler, BatchNorm, notes (one of them no number) and a write that no step made.

    With `target`, it goes on from that step.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    groups = [{"params": model[0].parameters()}, {"params": [*model[1].parameters(), *model[2].parameters()], "lr": 0.5}]
    inner = torch.optim.AdamW(groups, lr=0.25)
    options: dict[str, Any] = {"durability": "process", "segment_bytes": 1 << 20, "checkpoint_every": 4, "keep": 100}
    with LoggedOptimizer(inner, run, model, **options) as optimizer:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
        optimizer.track(scheduler=scheduler)
        optimizer.recover(target)
        for number in optimizer.steps(until):
            optimizer.zero_grad()
            loss = model(torch.full((3, 4), float(number)) + torch.eye(3, 4)).square().mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.log_scalars(loss=loss.item(), broken=float("nan"))
            if number == 4:
                model[0].weight.data.clamp_(-0.1, 0.1)
            optimizer.training_run.journal.wait_checkpoint()
            say(number + 1)
    return model


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run; to be read only."""
    run = tmp_path_factory.mktemp("trained") / "run"
    train(run)
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be damaged."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@dataclass(frozen=True)
class Called:
    """What a call of the command line gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout as strict JSON."""
        return json.loads(self.out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


Cli = Callable[..., Called]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Call `tranlogs` with these arguments, as in a pipe: without a terminal, and without its width."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*arguments: object) -> Called:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Called(int(exit.value.code or 0), out, err)

    return call


def segment_files(run: Path) -> list[Path]:
    """The segments that hold entries, oldest first."""
    return sorted((run / "rank0" / "log").glob("*.seg"))


def flip(path: Path, offset: int) -> None:
    """Change one byte."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)
