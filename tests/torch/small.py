"""A model of two layers, logged: for tests of what the wrapper says and refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.torch.lab import contents, flatten
from tests.torch.nets import seed
from tranlogs_torch import LoggedOptimizer

Model = nn.Module


def small() -> nn.Sequential:
    seed()
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def logged(model: Model, run: Path, inner: torch.optim.Optimizer | None = None, **options: Any) -> LoggedOptimizer:
    inner = torch.optim.AdamW(model.parameters(), lr=0.01) if inner is None else inner
    return LoggedOptimizer(inner, run, model, **({"durability": "process", "segment_bytes": 1 << 20} | options))


def one_step(model: Model, optimizer: Any, number: int = 0) -> None:
    optimizer.zero_grad()
    model(torch.full((3, 4), 0.1 * (number + 1))).square().sum().backward()
    optimizer.step()


def everything(model: Model, optimizer: Any) -> dict[str, Any]:
    return flatten({"model": contents(model), "optimizer": contents(optimizer)})
