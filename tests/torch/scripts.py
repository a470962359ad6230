"""Training loops of many kinds, each a script of `lab.Attempt`: it may die at any of its ticks."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from tests.kills.pytorch import Job
from tests.torch.lab import Attempt
from tests.torch.nets import Mixed, loss_of, seed, tokens

Make = Callable[[nn.Module], torch.optim.Optimizer]


def split(model: nn.Module) -> list[dict[str, Any]]:
    """Two parameter groups with different learning rates."""
    parameters = list(model.parameters())
    return [{"params": parameters[::2]}, {"params": parameters[1::2], "lr": 0.003}]


def numbered(optimizer: Any, batches: Any) -> Any:
    """The batches with their numbers over the whole run."""
    return enumerate(batches, optimizer.report.batch if hasattr(optimizer, "report") else 0)


def ordinary(
    attempt: Attempt,
    *,
    optimizer_of: Make,
    batches: int = 13,
    dtype: torch.dtype = torch.float32,
    set_to_none: bool = True,
    sparse: bool = False,
) -> None:
    """Two groups, a scheduler that changes lr and momentum at each step, an average of the weights."""
    seed()
    model = Mixed(sparse=sparse).to(dtype)
    loader = tokens()
    optimizer = attempt.wrap(optimizer_of(model), model)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
    average = AveragedModel(model)
    attempt.start(optimizer, scheduler=scheduler, average=average, loader=loader)
    for number, batch in numbered(optimizer, optimizer.batches(loader, batches)):
        attempt.saw(number, batch)
        loss_of(model, batch).backward()
        attempt.tick()
        optimizer.step()
        attempt.tick()
        scheduler.step()
        average.update_parameters(model)
        optimizer.zero_grad(set_to_none=set_to_none)
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer, scheduler=scheduler, average=average)
    optimizer.close()


def validate(model: nn.Module, loader: DataLoader[Any]) -> float:
    """The loss over a loader, with some noise from every generator."""
    model.eval()
    with torch.no_grad():
        total = sum(loss_of(model, batch).item() for batch in loader)
    model.train()
    return total + 0.01 * (torch.rand(()).item() + float(np.random.rand()) + random.random())


def accumulating(attempt: Attempt, *, batches: int = 20, windows: int = 3, clip: str = "") -> None:
    """Steps after every third batch; windows straddle epochs."""
    seed()
    model = Mixed()
    loader = tokens(36)  # nine batches
    optimizer = attempt.wrap(torch.optim.AdamW(split(model), lr=0.01), model)
    attempt.start(optimizer, loader=loader)
    for number, batch in numbered(optimizer, optimizer.batches(loader, batches)):
        attempt.saw(number, batch)
        (loss_of(model, batch) / windows).backward()
        attempt.tick()
        if number % windows == windows - 1:
            if clip == "torch":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            elif clip == "ours":
                optimizer.clip_grad_norm_(0.1)
            attempt.tick()
            optimizer.step()
            optimizer.zero_grad()
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def adversarial(attempt: Attempt, *, batches: int = 20) -> None:
    """Two steps of D a batch, its weights clipped by `.data`; G every third batch, its gradients accumulated meanwhile."""
    seed()
    critic = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    maker = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 6))
    loader = DataLoader(TensorDataset(torch.randn(40, 6)), batch_size=5, shuffle=True)
    optimizer = attempt.wrap(torch.optim.RMSprop(critic.parameters(), 1e-3), {"d": critic, "g": maker})
    inner = torch.optim.Adam(maker.parameters(), 1e-3, fused=True)
    attempt.add_optimizer(optimizer, inner, "g")
    attempt.start(optimizer, loader=loader)
    for number, batch in numbered(optimizer, optimizer.batches(loader, batches)):
        attempt.saw(number, batch)
        x = batch[0]
        for _ in range(2):
            optimizer.zero_grad()
            (critic(maker(torch.randn(len(x), 4)).detach()).mean() - critic(x).mean()).backward()
            optimizer.step()
            attempt.tick()
            for p in critic.parameters():
                p.data.clamp_(-0.1, 0.1)
        (-critic(maker(torch.randn(len(x), 4))).mean()).backward()
        attempt.tick()
        if number % 3 == 2:
            inner.step()  # directly, not through the wrapper
            attempt.tick()
            inner.zero_grad()
    attempt.keep(critic=critic, maker=maker, optimizer=optimizer, inner=inner)
    optimizer.close()


def own_loop(attempt: Attempt, *, batches: int = 20, is_compiled: bool = False) -> None:
    """No loop of ours: the unit ends at the next training forward, or at the next step where that is compiled."""
    seed()
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 2))
    called = torch.compile(model, backend="eager", fullgraph=True) if is_compiled else model
    optimizer = attempt.wrap(torch.optim.AdamW(model.parameters(), lr=0.01), called)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    attempt.start(optimizer, scheduler=scheduler)
    for number in range(attempt.reports[0].step if attempt.reports else 0, batches):
        attempt.saw(number, number)
        loss = called(torch.full((3, 4), 0.1 * number) + torch.rand(3, 4)).square().sum()
        loss.backward()
        attempt.tick()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        optimizer.log_scalars(loss=loss.item())
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer, scheduler=scheduler)
    optimizer.close()


def simple(
    attempt: Attempt,
    model: nn.Module,
    inner: torch.optim.Optimizer,
    *,
    turns: int = 9,
    width: int = 5,
    change: Callable[[int, Any], None] = lambda number, optimizer: None,
) -> None:
    """The plainest script: one step a turn, on numbers that depend on the turn; `change` runs before each."""
    optimizer = attempt.wrap(inner, model)
    attempt.start(optimizer)
    for number in optimizer.steps(turns, stateless=True):
        change(number, optimizer)
        model(torch.full((3, width), 0.1 * number)).square().mean().backward()
        attempt.tick()
        optimizer.step()
        optimizer.zero_grad()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def built(job: Job) -> tuple[nn.Module, DataLoader[Any], Any]:
    """Return a model of one layer, its data, and its optimizer."""
    seed()
    model = nn.Linear(6, 1)
    loader = DataLoader(TensorDataset(torch.randn(40, 6)), batch_size=8, shuffle=True)
    return model, loader, job.wrap(torch.optim.SGD(model.parameters(), lr=0.01), model)


def stepped(job: Job, model: nn.Module, optimizer: Any, rows: torch.Tensor) -> float:
    """Take a step, and return its loss."""
    optimizer.zero_grad()
    loss = model(rows).square().mean()
    loss.backward()
    optimizer.step()
    job.at("batch")
    return loss.item()
