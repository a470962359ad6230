"""A loop that does not use the library: it saves its weights, and never loads them."""

import time

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(120):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
    print(f"step {step}: loss {loss.item():.6f}")
    if step % 10 == 0:
        torch.save(model.state_dict(), "model.pt")
