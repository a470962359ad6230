"""Small models with the awkward parts of real ones, and their data."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.torch.lab import contents, flatten
from tranlogs_torch import LoggedOptimizer


def seed(number: int = 3) -> None:
    """Seed every global generator."""
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


class Mixed(nn.Module):
    """Tied, frozen, unused, rarely used and 0-d parameters, a channels_last convolution, BatchNorm, dropout."""

    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6, sparse=sparse)
        self.conv = nn.Conv2d(1, 4, 3, padding=1).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm1d(6)
        self.hidden = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        if not sparse:
            self.head.weight = self.embed.weight
        self.rare = nn.Linear(6, 6, bias=False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.frozen = nn.Parameter(torch.randn(3, 2), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(2, 5))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        if int(tokens[0]) % 3 == 0:
            x = self.rare(x)
        x = torch.tanh(self.hidden(self.norm(x)))
        x = nn.functional.dropout(x, 0.2, self.training) * self.scale
        image = self.conv(x.reshape(len(x), 1, 2, 3).contiguous(memory_format=torch.channels_last))
        return self.head(x + image.mean(1).reshape(len(x), 6))


def tokens(count: int = 44, batch_size: int = 4, **options: Any) -> DataLoader[Any]:
    """Batches of (tokens, targets), shuffled."""
    data = TensorDataset(torch.arange(count) % 11, (torch.arange(count) * 7) % 11)
    return DataLoader(data, batch_size=batch_size, shuffle=True, **options)


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    """Cross entropy, in float32 at least."""
    x, y = batch
    logits = model(x)
    return nn.functional.cross_entropy(logits if logits.dtype is torch.float64 else logits.float(), y)


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
