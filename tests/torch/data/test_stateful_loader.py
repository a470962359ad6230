"""torchdata's StatefulDataLoader is a loader like any other: its own state is not used, and not needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, RandomSampler, Sampler, SubsetRandomSampler, WeightedRandomSampler

from tests.torch.data.test_data import training
from tests.torch.lab import prove_exact
from tests.torch.sources import Augmented, Bucketed, Numbers

stateful = pytest.importorskip("torchdata.stateful_dataloader")
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 with torch 2.15


class Counting(IterableDataset[torch.Tensor]):
    """A stream that torchdata would bring back by its state."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.at = 0
        while self.at < 46:
            self.at += 1
            yield torch.tensor([float(self.at), 1.0])

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def _sampled(sampler: Callable[[], Sampler[Any]], **fixed: Any) -> Callable[..., Any]:
    return lambda **o: stateful.StatefulDataLoader(Numbers(), 4, sampler=sampler(), **fixed, **o)


def _shared_out(**options: Any) -> Any:
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    sampler = StatefulDistributedSampler(np.arange(46), num_replicas=2, rank=1)
    return stateful.StatefulDataLoader(Numbers(), 2, sampler=sampler, **options)


LOADERS: dict[str, Callable[..., Any]] = {
    "shuffled": lambda **o: stateful.StatefulDataLoader(Numbers(), 4, shuffle=True, drop_last=True, **o),
    "generator": lambda **o: stateful.StatefulDataLoader(Numbers(), 4, shuffle=True, generator=_generator(), **o),
    "one by one": lambda **o: stateful.StatefulDataLoader(Numbers(), batch_size=None, shuffle=True, **o),
    "replacement": _sampled(lambda: RandomSampler(range(46), replacement=True)),
    "weighted": _sampled(lambda: WeightedRandomSampler([1.0 + i % 3 for i in range(46)], 46)),
    "subset": _sampled(lambda: SubsetRandomSampler(range(3, 40), generator=_generator())),
    "batch sampler": lambda **o: stateful.StatefulDataLoader(Numbers(), batch_sampler=Bucketed(), **o),
    "distributed": _shared_out,
    "augmented": lambda **o: stateful.StatefulDataLoader(Augmented(), 4, shuffle=True, **o),
    "stream with state": lambda **o: stateful.StatefulDataLoader(Counting(), 4, **o),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LOADERS)
def test_stateful_loader_goes_on_at_the_exact_next_batch(name: str, tmp_path: Path) -> None:
    prove_exact(partial(training, make=LOADERS[name]), tmp_path / "run", (6, 8, 10), checkpoint_every=1000)


@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
def test_stateful_loader_with_workers(persistent: bool, tmp_path: Path) -> None:
    script = partial(training, make=LOADERS["shuffled"], num_workers=2, persistent_workers=persistent)
    prove_exact(script, tmp_path / "run", (6, 9), is_exact=None, checkpoint_every=1000)
