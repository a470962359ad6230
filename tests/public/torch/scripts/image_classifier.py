"""In the style of timm: an averaged model, a rate that is set after each update, mixed images, the best files kept."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.kills.pytorch import Job
from tests.public.torch.scripts.data import digits
from tests.torch.nets import seed

EPOCHS, KEPT = 6, 2


class ModelEma:
    """A copy of the model whose weights and statistics follow slowly."""

    def __init__(self, model: nn.Module, decay: float = 0.9) -> None:
        self.module, self.decay = copy.deepcopy(model).eval().requires_grad_(False), decay

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for mine, other in zip(self.module.state_dict().values(), model.state_dict().values(), strict=True):
            mine.copy_(self.decay * mine + (1.0 - self.decay) * other)

    def state_dict(self) -> dict[str, Any]:
        return self.module.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state)


class CosineScheduler:
    """A cosine over all updates, after a warm-up; it knows the optimizer and no step of it."""

    def __init__(self, optimizer: Any, total: int, warmup: int = 3) -> None:
        self.optimizer, self.total, self.warmup = optimizer, total, warmup
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.step_update(0)

    def step_update(self, num_updates: int, metric: float | None = None) -> None:
        for group in self.optimizer.param_groups:
            share = num_updates / self.warmup if num_updates < self.warmup else 1.0
            group["lr"] = share * group["initial_lr"] * 0.5 * (1.0 + math.cos(math.pi * num_updates / self.total))

    def state_dict(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "optimizer"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class CheckpointSaver:
    """Keeps the files of the best epochs."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.kept: list[Any] = []

    def save(self, content: dict[str, Any], epoch: int, metric: float) -> None:
        torch.save(content, self.job.files / f"checkpoint-{epoch}.pth.tar")
        self.kept = sorted([*self.kept, [metric, epoch]], reverse=True)
        for _, worse in self.kept[KEPT:]:
            (self.job.files / f"checkpoint-{worse}.pth.tar").unlink(missing_ok=True)
        self.kept = self.kept[:KEPT]

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = state["kept"]


def mixed(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mix each image and its label with those of another; the share is drawn by numpy."""
    share = np.random.beta(0.4, 0.4)
    target = nn.functional.one_hot(y, 10).float() * 0.9 + 0.01
    return x * share + x.flip(0) * (1.0 - share), target * share + target.flip(0) * (1.0 - share)


def validate(job: Job, model: nn.Module, loader: DataLoader[Any]) -> float:
    """Return the accuracy."""
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in loader:
            right += int((model(x).argmax(1) == y).sum())
            job.at("validation")
    return right / 30


def train(job: Job) -> None:
    """Train, with all that has a state tracked."""
    seed()
    loader_train = DataLoader(TensorDataset(*digits(40)), batch_size=8, shuffle=True, drop_last=True)
    loader_eval = DataLoader(TensorDataset(*digits(30, first=40)), batch_size=15)
    body = [nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.GELU(), nn.Flatten()]
    model = nn.Sequential(*body, nn.Linear(216, 10))
    decayed = [{"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.05}]
    decayed += [{"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0}]
    optimizer = job.wrap(torch.optim.AdamW(decayed, lr=1e-2), model)
    updates_per_epoch = len(loader_train)
    scheduler = CosineScheduler(optimizer, EPOCHS * updates_per_epoch)
    ema, saver = ModelEma(model), CheckpointSaver(job)
    job.start(optimizer, loader=loader_train, scheduler=scheduler, ema=ema, saver=saver)
    for epoch in optimizer.epochs(EPOCHS, loader_train):
        model.train()
        num_updates = epoch * updates_per_epoch + epoch.batch
        for x, y in epoch:
            x, target = mixed(x, y)
            loss = torch.sum(-target * torch.log_softmax(model(x), dim=-1), dim=-1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            job.at("batch")
            ema.update(model)
            num_updates += 1
            job.print(f"Train: {int(epoch)} [{num_updates}] Loss: {loss.item()} LR: {optimizer.param_groups[0]['lr']}")
            scheduler.step_update(num_updates=num_updates, metric=loss.item())
        plain, averaged = validate(job, model, loader_eval), validate(job, ema.module, loader_eval)
        job.print(f"Test: {int(epoch)} Acc {plain}, EMA {averaged}")
        content = {"epoch": int(epoch), "state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
        saver.save(content | {"state_dict_ema": ema.state_dict()}, int(epoch), averaged)
        job.at("epoch end")
    job.keep(model=model, optimizer=optimizer, ema=ema, saver=saver)
    optimizer.close()
