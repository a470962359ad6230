"""A loop that resumes exactly. It draws its weights without a seed, writes a table, and keeps checkpoints of its own."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tranlogs_torch import LoggedOptimizer

x = torch.linspace(-1, 1, 96 * 8).reshape(96, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1))
optimizer = LoggedOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-2), run="runs/exact", model=model)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
report = optimizer.track(loader=loader, scheduler=scheduler).recover()
print(report)
for batch, (a, b) in enumerate(optimizer.batches(loader, until=1000), start=report.batch):
    loss = (model(a) - b).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(f"batch {batch}: loss {loss.item():.6f}, lr {scheduler.get_last_lr()[0]:.6f}")
    with open("table.csv", "a") as table:
        table.write(f"{batch},{loss.item()}\n")
    if batch % 5 == 4:
        torch.save({"batch": batch, "model": model.state_dict()}, "latest.pt")
optimizer.close()
