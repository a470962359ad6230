"""In the style of the ImageNet example: a residual net, StepLR, validation and two checkpoint files each epoch, `--resume`."""

from __future__ import annotations

import gzip
import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.kills.pytorch import Job
from tests.torch.nets import seed

EPOCHS = 6


def digits(count: int, *, first: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images of digits (8 x 8, from 0 to 1) and their labels. The file is scikit-learn's, which is not imported."""
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None
    assert spec.submodule_search_locations
    with gzip.open(Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.float32, skiprows=first, max_rows=count)
    return torch.from_numpy(rows[:, :-1] / 16).reshape(-1, 8, 8), torch.from_numpy(rows[:, -1]).long()


class BasicBlock(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(x + self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))


class AverageMeter:
    """The value of now, and the mean of an epoch."""

    def __init__(self, name: str) -> None:
        self.name, self.value, self.sum, self.count = name, 0.0, 0.0, 0

    def update(self, value: float, n: int) -> None:
        self.value, self.sum, self.count = value, self.sum + value * n, self.count + n

    def __str__(self) -> str:
        return f"{self.name} {self.value} ({self.sum / self.count})"


def validate(job: Job, loader: DataLoader[Any], model: nn.Module, criterion: nn.Module) -> float:
    """Return the accuracy."""
    losses, top1 = AverageMeter("Loss"), AverageMeter("Acc@1")
    model.eval()
    with torch.no_grad():
        for images, target in loader:
            output = model(images)
            losses.update(criterion(output, target).item(), len(images))
            top1.update(100.0 * (output.argmax(1) == target).float().mean().item(), len(images))
            job.at("validation")
    job.print(f" * {losses} {top1}")
    return top1.sum / top1.count


def save_checkpoint(job: Job, state: dict[str, Any], is_best: bool) -> None:
    """Write a file, whole or not at all; the best one has a copy."""
    torch.save(state, job.folder / "checkpoint.tmp")
    os.replace(job.folder / "checkpoint.tmp", job.files / "checkpoint.pth.tar")
    job.at("checkpoint")
    if is_best:
        shutil.copyfile(job.files / "checkpoint.pth.tar", job.files / "model_best.pth.tar")


def train(job: Job, *, resumes: bool = False, start_epoch: int | None = None) -> None:
    """Train.

    Args:
        job: a life of the script.
        resumes: as with `--resume`: what the last epoch has written is loaded before `recover()`.
        start_epoch: None: the epochs are `optimizer.epochs(...)`; else those of the script, from here or from its file.
    """
    seed()
    train_loader = DataLoader(TensorDataset(*digits(40)), batch_size=8, shuffle=True)
    val_loader = DataLoader(TensorDataset(*digits(30, first=40)), batch_size=10)
    body = [nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 4, 3, bias=False), BasicBlock(4), nn.Flatten()]
    model = nn.Sequential(*body, nn.Linear(144, 10))
    criterion = nn.CrossEntropyLoss()
    optimizer = job.wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4), model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    state = optimizer.remember(best_acc1=0.0)
    if resumes and (job.files / "checkpoint.pth.tar").exists():
        checkpoint = torch.load(job.files / "checkpoint.pth.tar")
        start_epoch = None if start_epoch is None else checkpoint["epoch"]
        state.best_acc1 = checkpoint["best_acc1"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
    job.start(optimizer, loader=train_loader, scheduler=scheduler)
    epochs = optimizer.epochs(EPOCHS, train_loader) if start_epoch is None else range(start_epoch, EPOCHS)
    for epoch in epochs:
        model.train()
        losses = AverageMeter("Loss")
        for i, (images, target) in epoch.enumerate() if start_epoch is None else enumerate(train_loader):
            loss = criterion(model(images), target)
            losses.update(loss.item(), len(images))
            optimizer.zero_grad()
            loss.backward()
            job.at("batch")
            optimizer.step()
            if i % 2 == 0:
                job.print(f"Epoch: [{int(epoch)}][{i}/{len(train_loader)}] Loss {losses.value}")
        job.at("epoch end")
        acc1 = validate(job, val_loader, model, criterion)
        scheduler.step()
        is_best, state.best_acc1 = acc1 > state.best_acc1, max(acc1, state.best_acc1)
        content = {"epoch": int(epoch) + 1, "arch": "tiny", "state_dict": model.state_dict(), "best_acc1": state.best_acc1}
        content |= {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
        save_checkpoint(job, content, is_best)
        job.at("epoch end")
    job.keep(model=model, optimizer=optimizer, scheduler=scheduler, state=state)
    optimizer.close()
