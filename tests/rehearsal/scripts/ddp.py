"""Two processes under torchrun."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tranlogs_torch import LoggedOptimizer

dist.init_process_group("gloo")
rank = dist.get_rank()
x = torch.randn(128, 8, generator=torch.Generator().manual_seed(1))
dataset = TensorDataset(x, x.sum(1, keepdim=True))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
torch.manual_seed(rank)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 1)))
optimizer = LoggedOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-2), run="runs/ddp", model=model)
optimizer.track(loader=loader).recover()
for epoch in optimizer.epochs(50):
    sampler.set_epoch(epoch)
    for a, b in epoch:
        loss = (model(a) - b).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank}: loss {loss.item():.6f}")
optimizer.close()
dist.destroy_process_group()
