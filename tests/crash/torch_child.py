"""A PyTorch script whose bits depend on the number of threads: it adds up many numbers in each step."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
import xxhash
from torch.utils.data import DataLoader, TensorDataset

from tranlogs_torch import LoggedOptimizer


@dataclass(frozen=True, slots=True)
class Said:
    """Where the script is: at a boundary, where it came back to (the first one), or at its end.

    Attributes:
        step: the step.
        sum: of the parameters.
        seconds: that recovery took.
        exact: what the report says.
    """

    step: int
    sum: int
    seconds: float = 0.0
    exact: bool | None = None


class Script:
    """Dropout, a scheduler and a shuffled loader, built alike each time."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(16, 2048), torch.nn.Dropout(0.1))
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), 0.01)
        self.loader = DataLoader(TensorDataset(torch.rand(300, 16)), 64, shuffle=True)

    def step(self, batch: torch.Tensor, scheduler: Any) -> None:
        self.optimizer.zero_grad()
        found = self.model(batch)
        (found / found.square().sum().sqrt()).tanh().sum().backward()
        self.optimizer.step()
        scheduler.step()

    def sum(self) -> int:
        return xxhash.xxh3_64_intdigest(b"".join(one.detach().numpy().tobytes() for one in self.model.parameters()))


def sums(threads: int, until: int) -> list[int]:
    """After each step of a run without a log."""
    torch.set_num_threads(threads)
    script = Script()
    scheduler, found = torch.optim.lr_scheduler.StepLR(script.optimizer, 5, 0.9), [script.sum()]
    while len(found) <= until:
        for (batch,) in script.loader:
            script.step(batch, scheduler)
            found.append(script.sum())
    return found


def train(pipe: Connection, run: str, threads: int, until: int, options: dict[str, Any]) -> None:
    """Come back, and train to a step; the resume is proven, as users have it."""
    os.environ.pop("TRANLOGS_RECHECK", None)
    torch.set_num_threads(threads)
    script, start = Script(), time.monotonic()
    with LoggedOptimizer(script.optimizer, run, script.model, checkpoint_every=7, **options) as optimizer:
        script.optimizer = optimizer
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
        optimizer.track(scheduler=scheduler, loader=script.loader)
        report = optimizer.recover()
        pipe.send(Said(report.step, script.sum(), time.monotonic() - start, report.exact))
        for (batch,) in optimizer.batches(script.loader, until=until):
            step = optimizer.watermarks["step"]
            if report.step < step == optimizer.watermarks["committed"]:
                pipe.send(Said(step, script.sum()))
            script.step(batch, scheduler)
        pipe.send(Said(until, script.sum(), 0.0, optimizer.report.exact))
