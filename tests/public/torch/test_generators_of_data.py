"""Random generators of a dataset: one that a pass moves is named, and one that no pass moves is not."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from tests.kills.judge import finish, prove_deaths
from tests.kills.pytorch import Death, Expected, Job, finished, killed
from tests.torch.nets import seed

SAMPLES = torch.randn(24, 3, generator=torch.Generator().manual_seed(1))


class Split(Dataset[torch.Tensor]):
    """Draws a part of the samples when it is made, and no number later."""

    def __init__(self) -> None:
        self._rng = random.Random(3)
        self.rows = self._rng.sample(range(24), 16)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return SAMPLES[self.rows[index]]


class Noisy(Split):
    """Draws with each sample."""

    def __init__(self, rng: Any) -> None:
        super().__init__()
        self.rng = rng

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + float(self.rng.random())


class Later(Split):
    """Makes its generator with the first sample."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if not hasattr(self, "rng"):
            self.rng = np.random.RandomState(4)
        return super().__getitem__(index) + self.rng.random_sample()


class Stream(IterableDataset[torch.Tensor]):
    """A stream with a generator.

    Args:
        draws: from the generator ("moved"), a copy of it ("copied"), one that each pass makes ("anew"), or not at all.
    """

    def __init__(self, draws: str) -> None:
        self.draws, self.rng, self.other = draws, np.random.default_rng(5), torch.Generator().manual_seed(6)

    def __iter__(self) -> Iterator[torch.Tensor]:
        if self.draws == "anew":
            self.rng = np.random.default_rng(5)
        rng = {"copied": copy.deepcopy(self.rng)}.get(self.draws, self.rng)
        for sample in SAMPLES[:16]:
            yield sample + (rng.random() if self.draws else 0)


class Ordered(Sampler[int]):
    """A sampler with a generator that it does not use."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(7)
        self.others = [np.random.default_rng(8)]

    def __iter__(self) -> Iterator[int]:
        return iter(range(16))

    def __len__(self) -> int:
        return 16


LOADERS: dict[str, Any] = {
    "used by __init__ alone": lambda: DataLoader(Split(), 4, shuffle=True),
    "in a stream, copied": lambda: DataLoader(Stream("copied"), 4),
    "in a stream, made in each pass": lambda: DataLoader(Stream("anew"), 4),
    "of a sampler": lambda: DataLoader(Split(), 4, sampler=Ordered()),
}
MOVED: dict[str, Any] = {
    "numpy": lambda: DataLoader(Noisy(np.random.default_rng(2)), 4),
    "Python": lambda: DataLoader(Noisy(random.Random(2)), 4),
    "made with the first sample": lambda: DataLoader(Later(), 4),
    "in a stream": lambda: DataLoader(Stream("moved"), 4),
}


def script(job: Job, make: Any) -> None:
    seed()
    model, loader = torch.nn.Linear(3, 1), make()
    optimizer = job.wrap(torch.optim.SGD(model.parameters(), lr=1e-3), model)
    job.start(optimizer, loader=loader)
    for epoch in optimizer.epochs(3, loader):
        for batch in epoch:
            loss = model(batch).square().mean()
            loss.backward()
            job.tick()
            optimizer.step()
            optimizer.zero_grad()
            job.print(f"{loss.item():.6f}")
    job.keep(model=model, optimizer=optimizer)
    optimizer.close()


@pytest.mark.crash
@pytest.mark.sampled(1)
@pytest.mark.parametrize("which", LOADERS)
def test_generator_that_no_pass_moves_is_no_reason_to_doubt(which: str, tmp_path: Path) -> None:
    made = partial(script, make=LOADERS[which])
    twin = finish(made, tmp_path / "twin")
    last = prove_deaths(made, tmp_path / "killed", twin, [Death("batch", number=7)], Expected())  # amid an epoch
    assert last[0].heard.warnings == []


@pytest.mark.crash
@pytest.mark.sampled(2)
@pytest.mark.parametrize("which", MOVED)
def test_generator_that_a_pass_moves_is_named_in_each_later_process(which: str, tmp_path: Path) -> None:
    moved = partial(script, make=MOVED[which])
    for number in (6, 2):  # in the second epoch; and there again
        assert killed(moved, tmp_path, Death("batch", number=number)) < 0
    last = finished(moved, tmp_path, tmp_path / "run")
    assert last.exact is not True
    assert any("loader.dataset.rng is a random generator that belongs to the dataset" in note for note in last.notes), last
