"""Trainings in a loop that accelerate has prepared: a small network on scikit-learn's digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.kills.pytorch import Job
from tests.trainers.common import said_of, tell
from tranlogs_torch import LoggedOptimizer
from tranlogs_torch.trainers.accelerate import log_prepared

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


def train(job: Job, **arguments: Any) -> None:
    """Train to the end."""
    accelerator, model, optimizer, loader, scheduler = prepared(**arguments)
    average = Average()
    accelerator.register_for_checkpointing(average)
    log: Any = None
    epochs: Any = range(3)
    if job.run is not None:
        log = log_prepared(accelerator, str(job.run), model, optimizer, loader, **job.settings)
        job.watch(lambda: log.report)
        log.track(scheduler=scheduler).recover()
        epochs = log.epochs(3)
    last, number = 0.0, 0 if log is None else log.report.batch
    for epoch in epochs:
        torch.rand(1)
        assert log is None or len(epoch) == BATCHES
        for x, y in loader if log is None else epoch:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                job.at(f"batch {number}")
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            number += 1
            last = loss.item()
            average.value = 0.9 * average.value + last
        job.at(f"epoch end {int(epoch)}")
    job.keep(model=accelerator.unwrap_model(model), optimizer=optimizer.optimizer, scheduler=scheduler, average=average.value)
    job.keep(step=accelerator.step, last=last)
    if log is not None:
        log.close()
        tell(job, rechecked=log.report.rechecked, batch=log.report.batch)


def counted(job: Job) -> None:
    """`batches(until=...)` counts what was trained, also where it is left in the middle and taken up again."""
    taken, batches = [], []
    accelerator, model, optimizer, loader, scheduler = prepared()
    for until in (4, 10, 16):
        log = log_prepared(accelerator, str(job.run), model, optimizer, loader, checkpoint_every=5)
        batches.append(log.track(scheduler=scheduler).recover().batch)
        taken.append(0)
        for x, y in log.batches(loader, until=until):
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            taken[-1] += 1
        log.close()
    plain = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), f"{job.run}-other", model)
    refused = said_of(lambda: plain.track(loader=loader))
    plain.close()
    tell(job, taken=taken, batches=batches, refused=refused)
