"""In the style of the MNIST example: a small convolutional net, StepLR by epoch, a test after each epoch, a file at the end."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.kills.pytorch import Job
from tests.torch.nets import seed

EPOCHS = 6


class Net(nn.Module):
    """Two layers of each kind, with dropout and BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 3)
        self.norm, self.drop = nn.BatchNorm2d(6), nn.Dropout2d(0.25)
        self.hidden, self.head = nn.Linear(24, 12), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv2(F.relu(self.conv1(x))))), 2)
        return F.log_softmax(self.head(F.relu(self.hidden(self.drop(x).flatten(1)))), dim=1)


def images(count: int, size: int = 8) -> TensorDataset:
    """Return noise with a bright column that the label tells."""
    labels = torch.arange(count) % 5
    found = torch.randn(count, 1, size, size) * 0.3
    found[torch.arange(count), 0, :, labels] += 1.0
    return TensorDataset(found, labels)


def test(job: Job, model: nn.Module, loader: DataLoader[Any], epoch: int) -> float:
    """Evaluate, and print what came out."""
    model.eval()
    loss, right = 0.0, 0
    with torch.no_grad():
        for x, y in loader:
            found = model(x)
            loss += F.nll_loss(found, y, reduction="sum").item()
            right += int((found.argmax(1) == y).sum())
            job.at("validation")
    job.print(f"epoch {int(epoch)}: test loss {loss / 20}, {right} of 20 right")
    return loss


def train(job: Job) -> None:
    """Train with `optimizer.epochs`."""
    seed()
    train_loader = DataLoader(images(32), batch_size=4, shuffle=True)
    test_loader = DataLoader(images(20), batch_size=10, shuffle=True)
    model = Net()
    optimizer = job.wrap(torch.optim.Adadelta(model.parameters(), lr=1.0), model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    job.start(optimizer, loader=train_loader, scheduler=scheduler)
    for epoch in optimizer.epochs(EPOCHS, train_loader):
        model.train()
        for i, (x, y) in epoch.enumerate():
            optimizer.zero_grad()
            loss = F.nll_loss(model(x), y)
            loss.backward()
            job.at("batch")
            optimizer.step()
            if i % 3 == 0:
                job.print(f"epoch {int(epoch)}, batch {i}: loss {loss.item()}")
        job.at("epoch end")
        test(job, model, test_loader, epoch)
        scheduler.step()
        job.at("epoch end")
    torch.save(model.state_dict(), job.files / "mnist_cnn.pt")
    job.keep(model=model, optimizer=optimizer, scheduler=scheduler)
    optimizer.close()
