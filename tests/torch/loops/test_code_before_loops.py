"""Code that stands before an epoch's loop runs again after a crash in the epoch's middle: what it does is not done twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.torch.lab import Attempt, in_child, prove_exact
from tests.torch.nets import seed

BEFORE: dict[str, Callable[[int, nn.Sequential, Any], float]] = {}
KILLS = [(4,), (9,), (14, 2), (13, 1, 1)]  # eight batches an epoch


def before(function: Callable[[int, nn.Sequential, Any], float]) -> Callable[[int, nn.Sequential, Any], float]:
    BEFORE[function.__name__] = function
    return function


@before
def lower_lr(epoch: int, model: nn.Sequential, optimizer: Any) -> float:
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    return 1.0


@before
def reset_a_layer(epoch: int, model: nn.Sequential, optimizer: Any) -> float:
    if epoch == 1:
        model[2].reset_parameters()  # type: ignore[operator]
    return 1.0


@before
def draw(epoch: int, model: nn.Sequential, optimizer: Any) -> float:
    return float(np.random.rand()) + random.random() + torch.rand(()).item()


@before
def add_a_group(epoch: int, model: nn.Sequential, optimizer: Any) -> float:
    if epoch == 1:
        optimizer.add_param_group({"params": model[4].requires_grad_(True).parameters(), "lr": 0.02})
    return 1.0


def data(count: int = 32) -> DataLoader[Any]:
    torch.manual_seed(count)
    return DataLoader(TensorDataset(torch.randn(count, 3), torch.randn(count, 2)), 4, shuffle=True)


def training(attempt: Attempt, *, name: str) -> None:
    seed()
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Dropout(0.2), nn.Linear(4, 2))
    model[4].requires_grad_(False)
    optimizer = attempt.wrap(torch.optim.SGD(model[:4].parameters(), 0.1, momentum=0.9), model)
    loader = data()
    attempt.start(optimizer, loader=loader)
    for epoch in optimizer.epochs(3, loader):
        factor = BEFORE[name](int(epoch), model, optimizer)
        for x, y in epoch:
            optimizer.zero_grad()
            (factor * (model(x) - y).square().mean()).backward()
            attempt.tick()
            optimizer.step()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("die_at", KILLS, ids=str)
@pytest.mark.parametrize("name", BEFORE)
def test_code_before_the_loop_counts_once(name: str, die_at: tuple[int, ...], tmp_path: Path) -> None:
    prove_exact(partial(training, name=name), tmp_path / "run", die_at)


def beside(attempt: Attempt, *, length: int) -> None:
    """A second source that is begun before each epoch's loop, and asked in its body."""
    seed()
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), model)
    loader, second = data(), data(length)
    attempt.start(optimizer, loader=loader, second=second)
    for epoch in optimizer.epochs(3, loader):
        others = iter(second)
        for x, y in epoch:
            u, v = next(others)
            optimizer.zero_grad()
            ((model(x) - y).square().mean() + (model(u) - v).square().mean()).backward()
            attempt.tick()
            optimizer.step()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("length", [32, 40])
@pytest.mark.parametrize("die_at", KILLS, ids=str)
def test_second_source_that_is_begun_before_the_loop(length: int, die_at: tuple[int, ...], tmp_path: Path) -> None:
    prove_exact(partial(beside, length=length), tmp_path / "run", die_at)


def test_change_of_the_optimizer_that_is_made_twice_is_told(tmp_path: Path) -> None:
    """What cannot be undone is not passed over in silence."""

    def script(attempt: Attempt) -> None:
        seed()
        model = nn.Linear(3, 2)
        optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), model)
        loader = data()
        attempt.start(optimizer, loader=loader)
        for epoch in optimizer.epochs(3, loader):
            optimizer.state.clear()
            for x, y in epoch:
                optimizer.zero_grad()
                (model(x) - y).square().mean().backward()
                attempt.tick()
                optimizer.step()
        attempt.keep(report=None if attempt.run is None else optimizer.report)
        optimizer.close()

    assert in_child(lambda: script(Attempt(tmp_path / "run", 12))) < 0
    last = Attempt(tmp_path / "run")
    script(last)
    report = last.kept["report"]
    assert report.exact is False
    assert any("epoch.batch == 0" in note for note in report.notes)
