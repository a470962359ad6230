"""A loop that remembers attributes, for the tests of `optimizer.remember(...)`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.torch.nets import seed
from tranlogs_torch import LoggedOptimizer


class Environment:
    """An environment with a state of its own, as simulators have it."""

    def __init__(self) -> None:
        self.place, self.seen, self.chance = 0.0, deque([0.0] * 3, maxlen=3), np.random.default_rng(5)

    def step(self, push: float) -> float:
        self.place = 0.9 * self.place + push + float(self.chance.normal())
        self.seen.append(self.place)
        return sum(self.seen)

    def get_state(self) -> tuple[Any, ...]:
        return self.place, self.seen, self.chance

    def set_state(self, state: tuple[Any, ...]) -> None:
        self.place, self.seen, self.chance = state


def logged(run: Path, model: nn.Module | None = None) -> tuple[LoggedOptimizer, nn.Module]:
    seed()
    model = model or nn.Linear(3, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return LoggedOptimizer(inner, run, model, durability="process", checkpoint_every=3, segment_bytes=1 << 20), model


def train(optimizer: LoggedOptimizer, model: nn.Module, until: int, body: Callable[[int], Any] = lambda turn: None) -> None:
    for turn in optimizer.steps(until, stateless=True):
        model(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        body(turn)
    optimizer.close()
