"""Samplers of a script's own: their order and their generators come back, or are named."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    TensorDataset,
)

from tests.torch.data.test_data import training
from tests.torch.lab import Attempt, in_child, prove_exact
from tests.torch.nets import seed
from tests.torch.sources import SOURCES, Make, Numbers
from tranlogs.training.rehearsed_process.rehearsed_journal import find_place
from tranlogs_torch import LoggedOptimizer


def test_schedule_of_batch_sizes_reaches_the_sampler_and_comes_back(tmp_path: Path) -> None:
    def script(attempt: Attempt) -> None:
        seed()
        loader = SOURCES["shuffled"]()
        model = torch.nn.Linear(2, 1)
        optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=1e-5), model)
        attempt.start(optimizer, loader=loader)
        for epoch in optimizer.epochs(3, loader):
            assert isinstance(loader.batch_sampler, BatchSampler)
            loader.batch_sampler.batch_size = 4 + 2 * epoch
            for x in epoch:
                attempt.saw_next(x)
                model(x).square().mean().backward()
                attempt.tick()
                optimizer.step()
                optimizer.zero_grad()
        attempt.keep(model=model)
        optimizer.close()
        assert type(loader.batch_sampler) is BatchSampler

    prove_exact(script, tmp_path / "run", (5, 9, 7))


class Hidden(Sampler[int]):
    """Draws from generators that stand in a dictionary, and in a closure."""

    def __init__(self) -> None:
        self.parts = {"numpy": np.random.default_rng(3), "torch": torch.Generator().manual_seed(4)}
        generator = random.Random(5)
        self.draw = lambda: generator.randrange(46)

    def __len__(self) -> int:
        return 46

    def __iter__(self) -> Iterator[int]:
        first = torch.randint(46, (1,), generator=self.parts["torch"]).item()
        second = int(self.parts["numpy"].integers(46))  # type: ignore[union-attr]
        return iter([int(first), second, *(self.draw() for _ in range(44))])


@pytest.mark.parametrize("die_at", [(5,), (13,), (20, 1)], ids=str)
def test_generators_of_a_sampler_are_found_where_they_lie(die_at: tuple[int, ...], tmp_path: Path) -> None:
    make: Make = lambda **o: DataLoader(Numbers(), 4, sampler=Hidden(), **o)  # noqa: E731
    prove_exact(partial(training, make=make), tmp_path / "run", die_at)


class Mining(Sampler[int]):
    """Its order depends on weights that the loop writes."""

    def __init__(self) -> None:
        self.weights = torch.ones(46)

    def __len__(self) -> int:
        return 46

    def __iter__(self) -> Iterator[int]:
        return iter(torch.multinomial(self.weights, 46).tolist())


@pytest.mark.parametrize("die_at", [8, 13, 20])
def test_sampler_whose_weights_the_loop_writes_is_named(die_at: int, tmp_path: Path) -> None:
    """At the first batch of an epoch, too."""

    def script(attempt: Attempt) -> None:
        seed()
        sampler = Mining()
        loader = DataLoader(Numbers(), 4, sampler=sampler)
        model = torch.nn.Linear(2, 1)
        optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=1e-5), model)
        attempt.start(optimizer, loader=loader)
        for x in optimizer.batches(loader, 30):
            model(x).square().mean().backward()
            attempt.tick()
            optimizer.step()
            optimizer.zero_grad()
            sampler.weights[int(x[0, 0])] += 1
        attempt.keep(report=optimizer.report)
        optimizer.close()

    assert in_child(lambda: script(Attempt(tmp_path / "run", die_at))) < 0
    last = Attempt(tmp_path / "run")
    script(last)
    assert last.kept["report"].exact is not True
    assert any("Mining.weights" in note or "Mining" in note for note in last.kept["report"].notes)


class Odd(Sampler[int]):
    """Holds what cannot be compared cheaply, or not by numpy."""

    def __init__(self, samples: list[Any]) -> None:
        self.data_source = samples
        self.weights = torch.ones(46, requires_grad=True)
        self.half = torch.ones(46, dtype=torch.bfloat16)
        self.sparse = torch.ones(3).to_sparse()
        self.objects = np.array([None, "a"], object)
        self.mixed = [object(), 1]

    def __len__(self) -> int:
        return 46

    def __iter__(self) -> Iterator[int]:
        return iter(range(46))


class Unprintable:
    def __repr__(self) -> str:
        raise AssertionError("samples are not looked at")


def test_whatever_a_sampler_holds_training_goes_on(tmp_path: Path) -> None:
    samples = [Unprintable() for _ in range(46)]
    prove_exact(
        partial(training, make=lambda **o: DataLoader(Numbers(), 4, sampler=Odd(samples), **o)), tmp_path / "run", (13,)
    )


def test_length_of_an_epoch_is_that_of_its_loader(tmp_path: Path) -> None:
    """The sampler decides over it, and not the number of samples."""
    model = torch.nn.Linear(2, 1)
    with_more = RandomSampler(torch.zeros(8, 2), replacement=True, num_samples=10**10)
    loader = DataLoader(TensorDataset(torch.zeros(8, 2)), 4, sampler=with_more)
    optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), 0.1), tmp_path / "run", model)
    optimizer.track(loader=loader).recover()
    for (batch,) in optimizer.batches(loader, until=2):
        model(batch).sum().backward()
        optimizer.step()
    assert find_place({"data": optimizer.training_run.auxiliary.read_data()}) == {"epoch": 0, "batches": 10**10 // 4}
    optimizer.close()
