"""In the style of the super resolution example: PixelShuffle, orthogonal weights, the whole model saved after each epoch."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.kills.pytorch import Job
from tests.torch.nets import seed

EPOCHS = 6


class Net(nn.Module):
    """Doubles each side of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.shuffle = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.PixelShuffle(2)
        nn.init.orthogonal_(self.first.weight, nn.init.calculate_gain("relu"))
        nn.init.orthogonal_(self.second.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shuffle(self.second(torch.relu(self.first(x))))


def pairs(count: int) -> TensorDataset:
    """Return small images and large ones."""
    large = torch.rand(count, 1, 8, 8)
    return TensorDataset(nn.functional.avg_pool2d(large, 2), large)


def train(job: Job) -> None:
    """Train with `batches`, which count over all epochs; validation and file follow the last batch of each."""
    seed()
    loader = DataLoader(pairs(24), batch_size=4, shuffle=True, drop_last=True)
    test_loader = DataLoader(pairs(8), batch_size=4)
    model, criterion = Net(), nn.MSELoss()
    optimizer = job.wrap(torch.optim.Adam(model.parameters(), lr=1e-2), model)
    job.start(optimizer, loader=loader)
    first = job.reports[0].batch if job.reports else 0
    for i, (x, y) in enumerate(optimizer.batches(loader, until=EPOCHS * len(loader)), start=first):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        job.at("batch")
        optimizer.step()
        job.print(f"epoch {i // len(loader)} ({i % len(loader)}/{len(loader)}): loss {loss.item()}")
        if (i + 1) % len(loader) == 0:
            with torch.no_grad():
                ratios = [10 * math.log10(1 / criterion(model(x), y).item()) for x, y in test_loader]
            job.at("validation")
            job.print(f"epoch {i // len(loader)}: PSNR {sum(ratios) / len(ratios)} dB")
            torch.save(model, job.files / f"model_epoch_{i // len(loader)}.pth")
            job.at("epoch end")
    job.keep(model=model, optimizer=optimizer)
    optimizer.close()
