"""Data of every kind: datasets, samplers, loaders, for the tests that resume in the middle of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

Make = Callable[..., DataLoader[Any]]

BATCHES = 29  # 12 an epoch


class Numbers(Dataset[torch.Tensor]):
    """46 samples; counts what is loaded in this process."""

    def __init__(self) -> None:
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return 46

    def __getitem__(self, index: int) -> torch.Tensor:
        self.loaded.append(int(index))
        return torch.tensor([float(index), 1.0])


class Stream(IterableDataset[torch.Tensor]):
    """46 samples in order; shared out among workers."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = torch.utils.data.get_worker_info()
        first, every = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        return (torch.tensor([float(i), 1.0]) for i in range(first, 46, every))


class Drawing(Sampler[int]):
    """Draws lazily, one index at a time, from the global generator of numpy."""

    def __len__(self) -> int:
        return 46

    def __iter__(self) -> Iterator[int]:
        return (int(np.random.randint(46)) for _ in range(46))


class Eager(Sampler[int]):
    """Draws when it is asked for an iterator, from the global generator of numpy."""

    def __len__(self) -> int:
        return 46

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.permutation(46).tolist())


class Rotating(Sampler[int]):
    """Another order each epoch, by a counter of its own."""

    def __init__(self) -> None:
        self.rounds = 0

    def __len__(self) -> int:
        return 46

    def __iter__(self) -> Iterator[int]:
        self.rounds += 1
        order = torch.randperm(46, generator=torch.Generator().manual_seed(self.rounds))
        return iter(order.tolist())


class RotatingWithState(Rotating):
    """The same, with what it takes to be brought back."""

    def state_dict(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]


class Paired(Sampler[Any]):
    """Yields index objects that no log can hold."""

    class Pair(tuple[int, int]):
        pass

    def __len__(self) -> int:
        return 46

    def __iter__(self) -> Iterator[Any]:
        return iter([self.Pair((i, i)) for i in torch.randperm(46).tolist()])


class PairedNumbers(Numbers):
    def __getitem__(self, index: Any) -> torch.Tensor:
        return super().__getitem__(index[0])


class Bucketed(Sampler[list[int]]):
    """A batch sampler of the user's own: batches of equal length, in random order, on a numpy generator of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(8)

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[int(i), int(i) + 1, int(i) + 2] for i in self.rng.permutation(12)])


class Legacy(Sampler[int]):
    """Generators of its own, of the older kinds."""

    def __init__(self) -> None:
        self.rng, self.other = np.random.RandomState(4), random.Random(4)

    def __len__(self) -> int:
        return 46

    def __iter__(self) -> Iterator[int]:
        return (self.rng.randint(23) + 23 * self.other.randrange(2) for _ in range(46))


class Augmented(Numbers):
    """Noise from all three global generators on each sample."""

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = float(torch.rand(())) + float(np.random.rand()) + random.random()
        return super().__getitem__(index) + torch.tensor([0.0, noise])


def mixed(samples: list[torch.Tensor]) -> torch.Tensor:
    """A random collate: mixes each sample with another one."""
    order = torch.randperm(len(samples)).tolist()
    share = random.random() + float(np.random.rand())
    return torch.stack([a + share * samples[i] for a, i in zip(samples, order, strict=True)])


def _batch_sampler(**options: Any) -> DataLoader[Any]:
    return DataLoader(Numbers(), batch_sampler=BatchSampler(RandomSampler(range(46)), 4, drop_last=True), **options)


def _own_generator(**options: Any) -> DataLoader[Any]:
    return DataLoader(Numbers(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(5), **options)


def _sampler_generator(**options: Any) -> DataLoader[Any]:
    sampler = RandomSampler(range(46), generator=torch.Generator().manual_seed(6))
    return DataLoader(Numbers(), batch_size=4, sampler=sampler, **options)


def _distributed(**options: Any) -> DataLoader[Any]:
    return DataLoader(Numbers(), 4, sampler=DistributedSampler(range(46), num_replicas=1, rank=0), **options)


def sampled(sampler: Callable[[], Sampler[Any]], data: Callable[[], Any] = Numbers) -> Make:
    return lambda **options: DataLoader(data(), batch_size=4, sampler=sampler(), **options)


SOURCES: dict[str, Make] = {
    "shuffled": lambda **o: DataLoader(Numbers(), batch_size=4, shuffle=True, **o),
    "in order, last dropped": lambda **o: DataLoader(Numbers(), batch_size=4, drop_last=True, **o),
    "one by one": lambda **o: DataLoader(Numbers(), batch_size=None, shuffle=True, **o),
    "batch sampler": _batch_sampler,
    "generator of its own": _own_generator,
    "generator of the sampler": _sampler_generator,
    "replacement": sampled(lambda: RandomSampler(range(46), replacement=True, num_samples=46)),
    "weighted": sampled(lambda: WeightedRandomSampler([1.0 + i % 3 for i in range(46)], 46)),
    "subset sampler": sampled(lambda: SubsetRandomSampler(range(3, 40))),
    "subset": lambda **o: DataLoader(Subset(Numbers(), range(5, 40)), batch_size=4, shuffle=True, **o),
    "list": lambda **o: DataLoader([torch.tensor([float(i), 1.0]) for i in range(46)], batch_size=4, shuffle=True, **o),
    "eager draws": sampled(Eager),
    "lazy draws": sampled(Drawing),
    "counter with state": sampled(RotatingWithState),
    "unloggable indices": sampled(Paired, PairedNumbers),
    "distributed": _distributed,
    "replacement, generator": sampled(
        lambda: RandomSampler(range(46), replacement=True, generator=torch.Generator().manual_seed(7))
    ),
    "weighted, generator": sampled(
        lambda: WeightedRandomSampler([1.0 + i % 3 for i in range(46)], 46, generator=torch.Generator().manual_seed(7))
    ),
    "subset sampler, generator": sampled(lambda: SubsetRandomSampler(range(3, 40), generator=torch.Generator().manual_seed(7))),
    "shuffled, last dropped": lambda **o: DataLoader(Numbers(), batch_size=4, shuffle=True, drop_last=True, **o),
    "batch sampler of one's own": lambda **o: DataLoader(Numbers(), batch_sampler=Bucketed(), **o),
    "older generators": sampled(Legacy),
    "augmented": lambda **o: DataLoader(Augmented(), batch_size=4, shuffle=True, **o),
    "random collate": lambda **o: DataLoader(Numbers(), batch_size=4, shuffle=True, collate_fn=mixed, **o),
    "stream": lambda **o: DataLoader(Stream(), batch_size=4, **o),
}
