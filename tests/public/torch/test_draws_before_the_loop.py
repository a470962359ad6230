"""Random numbers that a script draws between `recover()` and its first loop are those of the fresh run.

Scripts of the forward-forward kind make their negative labels there, others a fixed noise that samples are shown from.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.torch.lab import Attempt, prove_exact
from tests.torch.nets import seed

Loop = Callable[[Any, DataLoader[Any]], Iterator[Any]]
BATCHES = 24


def batches(optimizer: Any, loader: DataLoader[Any]) -> Iterator[Any]:
    yield from optimizer.batches(loader, until=BATCHES)


def epochs(optimizer: Any, loader: DataLoader[Any]) -> Iterator[Any]:
    for epoch in optimizer.epochs(4, loader):
        yield from epoch


def steps(optimizer: Any, loader: DataLoader[Any]) -> Iterator[Any]:
    for _ in optimizer.steps(BATCHES, stateless=True):
        yield (torch.randn(4, 2),)


LOOPS: dict[str, Loop] = {loop.__name__: loop for loop in (batches, epochs, steps)}


def forward_forward(attempt: Attempt, *, loop: Loop) -> None:
    seed()
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
    loader = DataLoader(TensorDataset(torch.randn(24, 2)), batch_size=4, shuffle=True)
    optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model)
    attempt.start(optimizer, loader=loader)
    negative, factor, shift = torch.randn(4, 1), np.random.rand(), random.random()
    for (x,) in loop(optimizer, loader):
        optimizer.zero_grad()
        attempt.tick()
        inputs = torch.cat([x, negative * factor + shift], dim=1)
        model(inputs).square().mean().backward()
        optimizer.step()
        attempt.tick()
    attempt.tick()
    attempt.keep(model=model, optimizer=optimizer, negative=negative, numbers=[factor, shift])
    optimizer.close()


@pytest.mark.parametrize("name", LOOPS)
def test_draws_before_the_loop_repeat(name: str, tmp_path: Path) -> None:
    """Across a second crash as well, when the checkpoint of the beginning is long gone."""
    prove_exact(partial(forward_forward, loop=LOOPS[name]), tmp_path / "run", (5, 22, 17, 3))


@pytest.mark.parametrize("name", LOOPS)
def test_draws_behind_the_loop_repeat(name: str, tmp_path: Path) -> None:
    """Where a run is started again that has finished, no loop gives a batch; what follows it draws on from the end."""
    prove_exact(partial(forward_forward, loop=LOOPS[name]), tmp_path / "run", (2 * BATCHES + 1,))
