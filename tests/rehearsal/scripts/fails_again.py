"""Cannot be started twice: its output folder must not exist."""

import os

import torch

from tranlogs_torch import LoggedOptimizer

os.mkdir("output")
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), run="runs/again", model=model)
optimizer.recover()
for _ in optimizer.steps(until=100, stateless=True):
    optimizer.zero_grad()
    model(torch.randn(4, 2)).square().mean().backward()
    optimizer.step()
optimizer.close()
