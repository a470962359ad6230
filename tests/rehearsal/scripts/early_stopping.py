"""A loop whose steps come back exactly, and whose best loss, curve, count of bad epochs and meter start over at each start."""

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


torch.manual_seed(0)
x = torch.randn(160, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Linear(8, 1)
optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-2), run="runs/early", model=model)
optimizer.recover()
best, bad, curve, meter = float("inf"), 0, [], Meter()
for epoch in optimizer.epochs(50, loader):
    for a, b in epoch:
        loss = (model(a) - b).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    meter.update(loss.item())
    curve.append(loss.item())
    bad = 0 if loss.item() < best else bad + 1
    best = min(best, loss.item())
    if bad > 10:
        break
optimizer.close()
