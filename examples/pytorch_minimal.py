"""Start it, kill it (Ctrl-C, kill -9, pull the plug), start it again: it goes on at the batch where it stopped.

The model learns to write like the Python documentation: which character follows the last 32?
"""

from pydoc_data.topics import topics

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tranlogs_torch import LoggedOptimizer

BATCHES = 3000

text = "".join(topics.values())
alphabet = sorted(set(text))
number = {character: i for i, character in enumerate(alphabet)}
windows = torch.tensor([number[character] for character in text]).unfold(0, 33, 1)
loader = DataLoader(TensorDataset(windows[:, :32], windows[:, 32]), batch_size=128, shuffle=True)

model = nn.Sequential(
    nn.Embedding(len(alphabet), 16),
    nn.Flatten(),
    nn.Linear(32 * 16, 512),
    nn.GELU(),
    nn.Dropout(0.1),
    nn.Linear(512, len(alphabet)),
)
optimizer = LoggedOptimizer(torch.optim.AdamW(model.parameters(), lr=3e-3), run="runs/minimal", model=model)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, BATCHES)
optimizer.track(scheduler=scheduler, loader=loader)
report = optimizer.recover()
print(report, flush=True)

for batch, (before, following) in enumerate(optimizer.batches(loader, until=BATCHES), start=report.batch + 1):
    loss = nn.functional.cross_entropy(model(before), following)
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    optimizer.log_scalars(loss=loss)
    if batch % 100 == 0:
        print(f"batch {batch}: loss {loss.item():.3f}", flush=True)

optimizer.close()
steps, losses = optimizer.scalars["loss"]
print(f"done: {len(losses)} losses of {steps[-1]} steps, however often it was killed")
