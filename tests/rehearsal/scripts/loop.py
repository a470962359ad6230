"""A loop of PyTorch that resumes exactly, or forgets something: `python loop.py KIND`.

Its weights are drawn without a seed; it writes a table, and keeps checkpoints of its own.

| kind | what is forgotten |
|---|---|
| exact | nothing |
| counter | every third turn trains on other labels, by a counter that nobody tracks |
| starts over | a best loss, a curve and a meter, which change at the end of an epoch |
| fails again | the script cannot be started twice: its output folder must not exist |
"""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tranlogs_torch import LoggedOptimizer


class Meter:
    """A sum."""

    def __init__(self):
        self.sum = 0.0

    def update(self, value):
        self.sum += value


kind = sys.argv[1]
if kind == "fails again":
    os.mkdir("output")
x = torch.linspace(-1, 1, 160 * 8).reshape(160, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1))
optimizer = LoggedOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-2), run="runs/loop", model=model)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
print(optimizer.track(loader=loader, scheduler=scheduler).recover())


def step(a, b):
    loss = (model(a) - b).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    return loss


if kind == "starts over":
    best, curve, meter = float("inf"), [], Meter()
    for epoch in optimizer.epochs(50, loader):
        for a, b in epoch:
            loss = step(a, b)
        meter.update(loss.item())
        curve.append(loss.item())
        best = min(best, loss.item())
elif kind == "counter":
    count = torch.zeros((), dtype=torch.int64)
    for a, b in optimizer.batches(loader, until=1000):
        count += 1
        print(f"turn {count.item()}: loss {step(a, b + 1 if count % 3 == 0 else b).item():.6f}")
else:
    for batch, (a, b) in optimizer.batches(loader, until=1000, enumerate=True):
        loss = step(a, b)
        print(f"batch {batch}: loss {loss.item():.6f}, lr {scheduler.get_last_lr()[0]:.6f}")
        with open("table.csv", "a") as table:
            table.write(f"{batch},{loss.item()}\n")
        if batch % 5 == 4:
            torch.save({"batch": batch, "model": model.state_dict()}, "latest.pt")
optimizer.close()
