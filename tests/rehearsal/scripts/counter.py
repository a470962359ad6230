"""A loop with a counter that nobody tracks: every third turn trains on other labels."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tranlogs_torch import LoggedOptimizer

torch.manual_seed(0)
x = torch.randn(96, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Linear(8, 1)
optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-2), run="runs/counter", model=model)
optimizer.track(loader=loader).recover()
count = torch.zeros((), dtype=torch.int64)
for a, b in optimizer.batches(loader, until=1000):
    count += 1
    if count % 3 == 0:
        b = b + 1
    loss = (model(a) - b).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"turn {count.item()}: loss {loss.item():.6f}")
optimizer.close()
