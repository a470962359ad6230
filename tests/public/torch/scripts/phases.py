"""Two loops in one script: train, take the best weights, and train on at a lower rate, for more epochs than before."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.kills.pytorch import Job
from tests.public.torch.scripts.data import digits
from tests.torch.nets import seed

EPOCHS = (2, 3)


def train(job: Job) -> None:
    """Train both phases."""
    seed()
    x, y = digits(60)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    loader = DataLoader(TensorDataset(x[:40], y[:40]), batch_size=8, shuffle=True)
    optimizer = job.wrap(torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9), model)
    state = optimizer.remember(best=math.inf, weights=None)
    job.start(optimizer, loader=loader)
    for phase, count in enumerate(EPOCHS):
        for epoch in optimizer.epochs(count, loader):
            for rows, labels in epoch:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(rows), labels).backward()
                optimizer.step()
                job.at("batch")
            with torch.no_grad():
                loss = nn.functional.cross_entropy(model(x[40:]), y[40:]).item()
            job.print(f"phase {phase}, epoch {int(epoch)}: {loss}")
            if phase == 0 and loss < state.best:
                state.best, state.weights = loss, copy.deepcopy(model.state_dict())
            job.at("epoch end")
        if phase == 0:
            model.load_state_dict(state.weights)
            for group in optimizer.param_groups:
                group["lr"] = 0.01
            job.at("between the loops")
    job.keep(model=model, optimizer=optimizer, state=state)
    optimizer.close()
