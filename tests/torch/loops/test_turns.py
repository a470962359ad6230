"""`steps()`: a resume is called exact where the data of the turns are known, and where the script declares that they are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from tests.torch.nets import seed
from tranlogs.training import UNKNOWN_DATA
from tranlogs_torch import LoggedOptimizer, RecoveryReport


class Average:
    """Weights, averaged by a class of the script's own."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def state_dict(self) -> dict[str, Any]:
        return {"decay": 0.9, "shadow": self.shadow}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow = state["shadow"]


class Position:
    """State of the script's own: the position in its data, or the best score. Nobody but the script knows which."""

    def __init__(self) -> None:
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


class TimmScheduler:
    """A scheduler with nothing of torch's."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        return {"base_values": [0.1]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


Make = Callable[[nn.Module, LoggedOptimizer], Any]
TELLS_NOTHING: dict[str, Make] = {
    "scheduler": lambda model, optimizer: lr_scheduler.StepLR(optimizer, 3),
    "another library's scheduler": lambda model, optimizer: TimmScheduler(optimizer.inner),
    "scaler": lambda model, optimizer: torch.amp.GradScaler("cpu", enabled=False),
    "averaged model": lambda model, optimizer: AveragedModel(model),
    "score": lambda model, optimizer: Position(),
    "average of its own": lambda model, optimizer: Average(model),
    "module": lambda model, optimizer: nn.Linear(2, 2),
    "optimizer": lambda model, optimizer: torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1),
    "torch generator": lambda model, optimizer: torch.Generator().manual_seed(1),
    "numpy generator": lambda model, optimizer: np.random.default_rng(1),
}


def train(run: Path, until: int, make: Make | None = None, *, stateless: bool = False, takes: bool = False) -> LoggedOptimizer:
    """Train without a loader, or with batches of one (`takes`) that the body of the loop asks for."""
    seed()
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), run, model, durability="process")
    loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=2)
    optimizer.track(**({"loader": loader} if takes else {}), **({"thing": make(model, optimizer)} if make else {}))
    optimizer.recover()
    batches: Iterator[Any] = iter(loader)
    for _ in optimizer.steps(until, stateless=stateless):
        (x,) = next(batches) if takes else (torch.ones(2, 4),)
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.close()
    return optimizer


def last_words(report: RecoveryReport) -> tuple[int, bool | None, bool]:
    return report.step, report.exact, UNKNOWN_DATA in report.notes


@pytest.mark.parametrize("name", TELLS_NOTHING)
def test_what_is_tracked_and_tells_nothing_of_the_data_leaves_it_unknown(name: str, tmp_path: Path) -> None:
    """`report` has it of the fresh run as well, so that nobody learns it from a crash."""
    for until, step in ((3, 0), (5, 3), (5, 5)):
        report = train(tmp_path / "run", until, TELLS_NOTHING[name]).report
        assert last_words(report) == (step, None, True)
    assert report.notes == (UNKNOWN_DATA,)


def test_nothing_tracked_is_said_once_a_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        optimizer = train(tmp_path / "run", 3)
        assert caplog.text.count(UNKNOWN_DATA) == 1
        optimizer = train(tmp_path / "run", 5)
    assert last_words(optimizer.report) == (3, None, True)
    assert caplog.text.count(UNKNOWN_DATA) == 1, "the report of the recovery had it"


@pytest.mark.parametrize("how", ["state", "loader", "declared"])
def test_data_that_are_tracked_or_declared_are_known(how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {
        "state": {"make": lambda model, optimizer: Position(), "stateless": True},
        "loader": {"takes": True},
        "declared": {"stateless": True},
    }[how]
    for until, step in ((3, 0), (5, 3), (5, 5), (6, 5)):
        report = train(tmp_path / "run", until, **options).report
        assert (report.step, report.exact, report.notes) == (step, True, ())
    assert "steps(...)" not in caplog.text


def test_a_declaration_that_is_made_after_the_crash_is_taken(tmp_path: Path) -> None:
    train(tmp_path / "run", 3)
    assert last_words(train(tmp_path / "run", 5, stateless=True).report) == (3, True, False)


def test_a_declaration_that_is_taken_back_is_not_kept(tmp_path: Path) -> None:
    train(tmp_path / "run", 3, stateless=True)
    assert last_words(train(tmp_path / "run", 5).report) == (3, None, True)


def test_a_loader_that_was_taken_from_in_another_loop_tells_nothing_of_the_turns(tmp_path: Path) -> None:
    """A first phase over a loader is exact; of the second one, nothing is known."""
    words = []
    for batches, turns in ((2, 0), (4, 0), (4, 2), (4, 4)):
        model = nn.Linear(4, 2)
        loader = DataLoader(TensorDataset(torch.ones(64, 4)), batch_size=2)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        with LoggedOptimizer(inner, tmp_path / "run", model, durability="process") as optimizer:
            report = optimizer.track(loader=loader).recover()
            for (x,) in optimizer.batches(loader, until=batches):
                model(x).sum().backward()
                optimizer.step()
            for _ in optimizer.steps(turns):
                optimizer.step()
        words.append((report.exact, optimizer.report.exact, optimizer.report.notes))
    unknown = (UNKNOWN_DATA,)
    assert words == [(True, True, ()), (True, True, ()), (True, None, unknown), (None, None, unknown)]


def test_a_turn_without_a_batch_of_the_tracked_loader_leaves_the_data_unknown(tmp_path: Path) -> None:
    """The first turn takes a batch, and the others train on one that waits in a variable."""
    model, words = nn.Linear(4, 2), []
    for until in (1, 3, 5):
        loader = DataLoader(TensorDataset(torch.ones(64, 4)), batch_size=2)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        with LoggedOptimizer(inner, tmp_path / "run", model, durability="process") as optimizer:
            optimizer.track(loader=loader).recover()
            batches, waiting = iter(loader), torch.ones(2, 4)
            for turn in optimizer.steps(until):
                (x,) = next(batches) if turn == 0 else (waiting,)
                model(x).sum().backward()
                optimizer.step()
        words.append(optimizer.report.exact)
    assert words == [True, None, None]
