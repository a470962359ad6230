"""Trainings in a loop that accelerate has prepared: a small network on scikit-learn's digits."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.trainers.common import Killer, plain, randomness, rank, tensors

BATCHES = 7  # an epoch, on each process


def noisy(samples: list[Any]) -> list[torch.Tensor]:
    """Collate, with random numbers."""
    x = torch.stack([sample[0] for sample in samples])
    return [x + torch.rand(()) * 0.1 + np.random.rand() * 0.1, torch.stack([sample[1] for sample in samples])]


class Average:
    """Of losses: it is registered with the accelerator, and not tracked."""

    def __init__(self) -> None:
        self.value = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def prepared(accumulation: int = 1, seedable: bool = False) -> tuple[Accelerator, Any, Any, Any, Any]:
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=accumulation,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=seedable),
    )
    set_seed(3)
    digits = load_digits()
    count = 5 * BATCHES * accelerator.num_processes
    data = TensorDataset(torch.tensor(digits.data[:count] / 16, dtype=torch.float32), torch.tensor(digits.target[:count]))
    model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.7)
    loader = DataLoader(data, batch_size=5, shuffle=True, collate_fn=noisy)
    return accelerator, *accelerator.prepare(model, optimizer, loader, scheduler)


def train(
    attempt: int, run: str | None, folder: str, kills: list[Any] | None = None, *, loop: str = "epochs", **arguments: Any
) -> dict[str, Any]:
    """Train to the end; what came out."""
    logging.getLogger("tranlogs").setLevel(logging.ERROR)
    killer = Killer(kills, attempt)
    accelerator, model, optimizer, loader, scheduler = prepared(**arguments)
    average = Average()
    accelerator.register_for_checkpointing(average)
    losses: list[float] = []
    number = 0

    def body(x: torch.Tensor, y: torch.Tensor) -> None:
        nonlocal number
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            killer.at("batch", number)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        number += 1
        losses.append(loss.item())
        average.value = 0.9 * average.value + losses[-1]

    report = log = None
    if run is None:
        for _ in range(3):
            torch.rand(1)
            for x, y in loader:
                body(x, y)
            killer.at("epoch end", 0)
    else:
        from tranlogs_torch.trainers.accelerate import log_prepared

        log = log_prepared(
            accelerator, run, model, optimizer, loader, checkpoint_every=5, durability="process", segment_bytes=1 << 20
        )
        report = log.track(scheduler=scheduler).recover()
        number = report.batch
        for epoch in log.epochs(3):
            torch.rand(1)
            assert len(epoch) == BATCHES
            for x, y in epoch:
                body(x, y)
            killer.at("epoch end", int(epoch))
        log.close()
        report = log.report
    inside = optimizer.optimizer
    net = accelerator.unwrap_model(model)
    found = {
        "weights and state": tensors(net, inside),
        "rng": randomness(),
        "scheduler": plain(scheduler.state_dict()),
        "step": accelerator.step,
        "last loss": losses[-1:],
        "average": average.value,
    }
    if report is not None:
        found["report"] = {"step": report.step, "exact": report.exact, "notes": report.notes, "batch": report.batch}
        found["report"] |= {"recheck": report.recheck, "rechecked": report.rechecked}
    return found


def counted(attempt: int, folder: str) -> dict[str, Any]:
    """`batches(until=...)` counts what was trained, also where it is left in the middle and taken up again."""
    from tranlogs.base.errors import UsageError
    from tranlogs_torch import LoggedOptimizer
    from tranlogs_torch.trainers.accelerate import log_prepared

    found: dict[str, Any] = {"taken": [], "batches": []}
    accelerator, model, optimizer, loader, scheduler = prepared()
    for until in (4, 10, 16):
        log = log_prepared(accelerator, f"{folder}/run", model, optimizer, loader, checkpoint_every=5)
        report = log.track(scheduler=scheduler).recover()
        found["batches"].append(report.batch)
        taken = 0
        for x, y in log.batches(loader, until=until):
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            taken += 1
        found["taken"].append(taken)
        log.close()
    plain_log = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), f"{folder}/other", model)
    try:
        plain_log.track(loader=loader)
    except UsageError as error:
        found["refused"] = str(error)
    plain_log.close()
    assert rank() == 0
    return found
