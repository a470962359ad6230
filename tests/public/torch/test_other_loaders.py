"""Loaders of other libraries are refused by their class, with what to write in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.torch.lab import Attempt, prove_exact
from tests.torch.nets import seed
from tranlogs.base.errors import UsageError
from tranlogs_torch import LoggedOptimizer


class PrefetchLoader:
    """As timm's: prepares the batches of a torch loader."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        for (x,) in self.loader:
            yield x * 2

    def __len__(self) -> int:
        return len(self.loader)


class OtherLoader:
    """As fastai's: has a dataset, and is no torch loader."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset)


def torch_loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(24, 2)), batch_size=4, shuffle=True)


USES: dict[str, Callable[[LoggedOptimizer, Any], object]] = {
    "track": lambda optimizer, loader: optimizer.track(loader=loader),
    "batches": lambda optimizer, loader: next(iter(optimizer.batches(loader, until=2))),
    "epochs": lambda optimizer, loader: next(iter(optimizer.epochs(2, loader))),
}


@pytest.mark.parametrize("use", USES)
def test_other_loaders_are_refused_with_the_way_that_works(use: str, tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    with LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "run", model) as optimizer:
        with pytest.raises(UsageError, match=r"got .*PrefetchLoader.*batches\(loader.loader, until=N"):
            USES[use](optimizer, PrefetchLoader(torch_loader()))
        with pytest.raises(UsageError, match=r"got .*OtherLoader.*of its dataset"):
            USES[use](optimizer, OtherLoader([1, 2]))
        assert optimizer.recover().step == 0


def training(attempt: Attempt) -> None:
    """What the message says."""
    seed()
    model = torch.nn.Linear(2, 1)
    loader = PrefetchLoader(torch_loader())
    optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=0.01), model)
    attempt.start(optimizer)
    for (x,) in optimizer.batches(loader.loader, until=18):
        optimizer.zero_grad()
        model(x * 2).square().mean().backward()
        attempt.tick()
        optimizer.step()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def test_the_way_that_works_is_exact(tmp_path: Path) -> None:
    prove_exact(training, tmp_path / "run", (4, 9))
