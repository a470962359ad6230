"""In the style of the example that continues sine waves: LBFGS with a closure, all data in each step, float64."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.kills.pytorch import Job
from tests.torch.nets import seed

STEPS = 7


class Sequence(nn.Module):
    """Two cells, whose outputs go on as inputs for what lies beyond the data."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm1, self.lstm2, self.linear = nn.LSTMCell(1, 5), nn.LSTMCell(5, 5), nn.Linear(5, 1)

    def forward(self, waves: torch.Tensor, future: int = 0) -> torch.Tensor:
        first = [torch.zeros(len(waves), 5, dtype=torch.double)] * 2
        second, outputs = list(first), []
        for i in range(waves.size(1) + future):
            value = waves[:, i : i + 1] if i < waves.size(1) else outputs[-1]
            first = list(self.lstm1(value, tuple(first)))
            second = list(self.lstm2(first[0], tuple(second)))
            outputs.append(self.linear(second[0]))
        return torch.cat(outputs, dim=1)


def train(job: Job) -> None:
    """Train; a prediction is written after each step."""
    seed()
    starts = torch.randint(-40, 40, (6, 1))
    waves = torch.from_numpy(np.sin((np.arange(12) + starts.numpy()) / 4.0))
    loader = DataLoader(TensorDataset(waves[2:, :-1], waves[2:, 1:]), batch_size=4)
    model, criterion = Sequence().double(), nn.MSELoss()
    optimizer = job.wrap(torch.optim.LBFGS(model.parameters(), lr=0.8, max_iter=4), model)
    job.start(optimizer, loader=loader)
    first = job.reports[0].batch if job.reports else 0
    for i, (x, y) in enumerate(optimizer.batches(loader, until=STEPS), start=first):

        def closure(x: torch.Tensor = x, y: torch.Tensor = y, i: int = i) -> torch.Tensor:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            job.print(f"STEP {i} loss: {loss.item()}")
            loss.backward()
            job.at("closure")
            return loss

        optimizer.step(closure)
        with torch.no_grad():
            future = model(waves[:2, :-1], future=5)
            job.print(f"STEP {i} test loss: {criterion(future[:, :-5], waves[:2, 1:]).item()}")
            torch.save(future, job.files / f"predict{i}.pt")
        job.at("step")
    job.keep(model=model, optimizer=optimizer)
    optimizer.close()
