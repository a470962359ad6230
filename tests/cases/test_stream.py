"""A stream that holds a random generator which no pass moves resumes exactly, and nothing is said of the generator."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from tests.kills.pytorch import Job, prove
from tests.torch.nets import seed


class Stream(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Rows in an order that a copy of the generator draws for each epoch, as Hugging Face's shuffled streams do it."""

    def __init__(self) -> None:
        self.table = torch.randn(72, 4, generator=torch.Generator().manual_seed(9))
        self.generator, self.epoch = np.random.default_rng(7), 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        drawn = copy.deepcopy(self.generator).integers(1 << 31)
        for row in np.random.default_rng(drawn + self.epoch).permutation(len(self.table)):
            yield self.table[row], self.table[row].sum()


def streamed(job: Job) -> None:
    """Train on a stream."""
    seed()
    stream = Stream()
    loader = DataLoader(stream, batch_size=12)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = job.wrap(torch.optim.NAdam(model.parameters(), lr=3e-3), model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    job.start(optimizer, loader=loader, scheduler=scheduler)
    for epoch in optimizer.epochs(5, loader):
        stream.set_epoch(int(epoch))
        for x, y in epoch:
            loss = nn.functional.mse_loss(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            job.at("batch")
        job.print(f"epoch {int(epoch)}: {loss.item()}")
    job.keep(model=model, optimizer=optimizer, scheduler=scheduler)
    optimizer.close()


@pytest.mark.crash
def test_a_stream_whose_generator_no_pass_moves_is_exact(tmp_path: Path) -> None:
    prove(streamed, tmp_path / "stream")
