"""In the style of the LSTM over the rows of digits: `for epoch in range`, and the train function is unchanged."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.kills.pytorch import Job
from tests.public.torch.scripts.data import digits
from tests.torch.nets import seed

EPOCHS = 5


class Net(nn.Module):
    """An LSTM whose last output is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.batchnorm = nn.LSTM(8, 10, batch_first=True), nn.BatchNorm1d(10)
        self.dropout1, self.dropout2 = nn.Dropout2d(0.25), nn.Dropout2d(0.5)
        self.fc1, self.fc2 = nn.Linear(10, 8), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output, _ = self.rnn(x)
        x = self.dropout1(self.batchnorm(output[:, -1, :])[:, :, None, None]).flatten(1)
        return F.log_softmax(self.fc2(self.dropout2(F.relu(self.fc1(x))[:, :, None, None]).flatten(1)), dim=1)


def train_epoch(job: Job, model: nn.Module, loader: Any, optimizer: Any, epoch: int) -> None:
    """Train with all batches of a loader, or of an epoch that stands for it."""
    model.train()
    for data, target in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        job.at("batch")
        optimizer.step()
        job.print(f"Train Epoch: {epoch} Loss: {loss.item()}")


def test(job: Job, model: nn.Module, loader: DataLoader[Any], epoch: int) -> None:
    """Evaluate."""
    model.eval()
    test_loss = 0.0
    with torch.no_grad():
        for data, target in loader:
            test_loss += F.nll_loss(model(data), target, reduction="sum").item()
            job.at("test")
    job.print(f"Epoch {epoch}: average loss {test_loss / 20}")


def train(job: Job) -> None:
    """Train with the functions above."""
    seed()
    train_loader = DataLoader(TensorDataset(*digits(40)), batch_size=8, shuffle=True)
    test_loader = DataLoader(TensorDataset(*digits(20, first=40)), batch_size=10, shuffle=True)
    model = Net()
    optimizer = job.wrap(torch.optim.Adadelta(model.parameters(), lr=0.1), model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    job.start(optimizer, loader=train_loader, scheduler=scheduler)
    for epoch in optimizer.epochs(EPOCHS, train_loader):
        train_epoch(job, model, epoch, optimizer, epoch + 1)
        job.at("epoch end")
        test(job, model, test_loader, epoch + 1)
        scheduler.step()
        job.at("epoch end")
    torch.save(model.state_dict(), job.files / "mnist_rnn.pt")
    job.keep(model=model, optimizer=optimizer, scheduler=scheduler)
    optimizer.close()
