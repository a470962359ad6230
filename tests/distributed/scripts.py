"""Scripts that a group of processes runs, each process with a Job of its own (tests/kills)."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.kills.pytorch import Job
from tests.torch.nets import seed

EPOCHS, BATCHES, BATCH = 4, 6, 4  # of each rank


class Net(nn.Module):
    """Layers with all that a rank can have for itself: statistics of batches, and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.middle, self.out = nn.Linear(8, 30), nn.Linear(30, 30), nn.Linear(30, 3)
        self.norm, self.drop = nn.BatchNorm1d(30), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(torch.relu(self.middle(self.drop(torch.relu(self.norm(self.into(x)))))))
        return found


def sharded(model: Net) -> nn.Module:
    """Give each rank its rows of every parameter."""
    fully_shard(model.middle)
    return fully_shard(model)


def train(job: Job, *, shards: bool = False, accumulates: bool = False, draws: bool = False) -> None:
    """Train with the others.

    Args:
        job: a life of this process.
        shards: parameters by FSDP2, not DistributedDataParallel.
        accumulates: step with every second batch.
        draws: rank 1 draws a random number in the first batch of each process, so that it cannot resume exactly.
    """
    seed()
    model = sharded(Net()) if shards else DistributedDataParallel(Net())
    seed(100 + dist.get_rank())
    generator = torch.Generator().manual_seed(5)
    count = BATCHES * BATCH * dist.get_world_size()
    data = TensorDataset(torch.randn(count, 8, generator=generator), torch.randint(0, 3, (count,), generator=generator))
    sampler: DistributedSampler[int] = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    optimizer = job.wrap(torch.optim.AdamW(model.parameters(), lr=1e-2), model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.7)
    job.start(optimizer, loader=loader, scheduler=scheduler)
    has_drawn = not draws or dist.get_rank() != 1
    for epoch in optimizer.epochs(EPOCHS, loader):
        sampler.set_epoch(int(epoch))
        for number, (x, y) in epoch.enumerate():
            is_part = accumulates and number % 2 == 0
            with model.no_sync() if is_part and not shards else contextlib.nullcontext():
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
            job.at("backward")
            if not has_drawn:
                has_drawn = bool(torch.rand(1) < 2)
            if not is_part:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            job.at("batch")
            job.print(f"epoch {int(epoch)}, batch {number}: loss {loss.item()}")
    job.keep(model=model, optimizer=optimizer, scheduler=scheduler)
    optimizer.close()


def two_loops(job: Job) -> None:
    """Train epochs, validate together at random points, change the rate and the weights, and train a number of batches."""
    seed()
    model = DistributedDataParallel(Net())
    seed(100 + dist.get_rank())
    generator = torch.Generator().manual_seed(5)
    data = TensorDataset(torch.randn(24, 8, generator=generator), torch.randint(0, 3, (24,), generator=generator))
    loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data, seed=3))
    optimizer = job.wrap(torch.optim.AdamW(model.parameters(), lr=1e-2), model)
    state = optimizer.remember(losses=[])
    job.start(optimizer, loader=loader)

    def train_on(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        job.at("batch")

    for epoch in optimizer.epochs(2, loader):
        for x, y in epoch:
            train_on(x, y)
    job.at("between")
    with torch.no_grad():
        loss = model.module(torch.randn(6, 8)).square().sum()
        dist.all_reduce(loss)
        state.losses = [*state.losses, loss.item()]
        for parameter in model.parameters():
            parameter.mul_(0.9)
    optimizer.param_groups[0]["lr"] *= 0.5
    job.at("between")
    for x, y in optimizer.batches(loader, 5):
        train_on(x, y)
    job.keep(model=model, optimizer=optimizer, state=state)
    optimizer.close()
