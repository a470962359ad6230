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

BATCHES = 20  # 12 an epoch


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


class Hidden(Sampler[int]):
    """Draws from generators that stand in a dictionary, and in a closure, beside attributes that no numpy can compare."""

    def __init__(self) -> None:
        self.parts = {"numpy": np.random.default_rng(3), "torch": torch.Generator().manual_seed(4)}
        generator = random.Random(5)
        self.draw = lambda: generator.randrange(46)
        self.weights, self.half = torch.ones(46, requires_grad=True), torch.ones(46, dtype=torch.bfloat16)
        self.sparse, self.objects, self.mixed = torch.ones(3).to_sparse(), np.array([None, "a"], object), [object(), 1]

    def __len__(self) -> int:
        return 46

    def __iter__(self) -> Iterator[int]:
        first = torch.randint(46, (1,), generator=self.parts["torch"]).item()
        second = int(self.parts["numpy"].integers(46))  # type: ignore[union-attr]
        return iter([int(first), second, *(self.draw() for _ in range(44))])


class ByEpoch(Rotating):
    """`epoch`, which set_epoch sets elsewhere, is state that samplers often have."""

    epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter(torch.randperm(46, generator=torch.Generator().manual_seed(self.epoch)).tolist())


class Lazily(DataLoader[Any]):
    """A class of the user's: its __iter__ is a generator, which asks for the sampler when the first batch is wanted."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for batch in super().__iter__():
            yield 2 * batch


class Shuffling(IterableDataset[torch.Tensor]):
    """A shuffle buffer on the global generator, from which the body of a loop draws, too."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        left = list(range(46))
        while left:
            yield torch.tensor([float(left.pop(random.randrange(len(left)))), 1.0])


class Counting(IterableDataset[torch.Tensor]):
    """A stream that torchdata would bring back by its state."""

    at = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.at = 0
        while self.at < 46:
            self.at += 1
            yield torch.tensor([float(self.at), 1.0])

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Augmented(Numbers):
    """Noise from all three global generators on each sample."""

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = float(torch.rand(())) + float(np.random.rand()) + random.random()
        return super().__getitem__(index) + torch.tensor([0.0, noise])


class Whole(Augmented):
    """Loads a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        shift = torch.tensor([0.0, float(torch.randn(()))])
        return [Numbers.__getitem__(self, i) + shift for i in indices]


def mixed(samples: list[torch.Tensor]) -> torch.Tensor:
    """A random collate: mixes each sample with another one."""
    order = torch.randperm(len(samples)).tolist()
    share = random.random() + float(np.random.rand())
    return torch.stack([a + share * samples[i] for a, i in zip(samples, order, strict=True)])


def sampled(sampler: Callable[[], Sampler[Any]], data: Callable[[], Any] = Numbers) -> Make:
    return lambda **options: DataLoader(data(), batch_size=4, sampler=sampler(), **options)


def seeded(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shuffled(data: Callable[[], Any] = Numbers, **fixed: Any) -> Make:
    return lambda **options: DataLoader(data(), batch_size=4, shuffle=True, **fixed, **options)


def _triples() -> list[float]:
    return [1.0 + i % 3 for i in range(46)]


SOURCES: dict[str, Make] = {
    "shuffled": shuffled(),
    "in order, last dropped": lambda **o: DataLoader(Numbers(), batch_size=4, drop_last=True, **o),
    "one by one": lambda **o: DataLoader(Numbers(), batch_size=None, shuffle=True, **o),
    "batch sampler": lambda **o: DataLoader(
        Numbers(), batch_sampler=BatchSampler(RandomSampler(range(46)), 4, drop_last=True), **o
    ),
    "generator of its own": lambda **o: DataLoader(Numbers(), batch_size=4, shuffle=True, generator=seeded(5), **o),
    "generator of the sampler": sampled(lambda: RandomSampler(range(46), generator=seeded(6))),
    "replacement": sampled(lambda: RandomSampler(range(46), replacement=True, num_samples=46)),
    "weighted": sampled(lambda: WeightedRandomSampler(_triples(), 46)),
    "subset sampler": sampled(lambda: SubsetRandomSampler(range(3, 40))),
    "subset": shuffled(lambda: Subset(Numbers(), range(5, 40))),
    "list": shuffled(lambda: [torch.tensor([float(i), 1.0]) for i in range(46)]),
    "eager draws": sampled(Eager),
    "lazy draws": sampled(Drawing),
    "counter with state": sampled(RotatingWithState),
    "counter by epoch": sampled(ByEpoch),
    "unloggable indices": sampled(Paired, PairedNumbers),
    "distributed": sampled(lambda: DistributedSampler(range(46), num_replicas=1, rank=0)),
    "batch sampler of one's own": lambda **o: DataLoader(Numbers(), batch_sampler=Bucketed(), **o),
    "older generators": sampled(Legacy),
    "hidden generators": sampled(Hidden),
    "augmented": shuffled(Augmented),
    "random collate": shuffled(collate_fn=mixed),
    "stream": lambda **o: DataLoader(Stream(), batch_size=4, **o),
    "class of one's own": lambda **o: Lazily(Numbers(), 4, shuffle=True, **o),
}


def _stateful(data: Callable[[], Any] = Numbers, sampler: Callable[[], Any] = lambda: None, **fixed: Any) -> Make:
    def make(**options: Any) -> Any:
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(data(), 4, sampler=sampler(), **fixed, **options)

    return make


def _shared_out() -> Any:
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    return StatefulDistributedSampler(np.arange(92), num_replicas=2, rank=1)


STATEFUL: dict[str, Make] = {  # torchdata's loader is one like any other: its own state is not used, and not needed
    "torchdata, shuffled": _stateful(shuffle=True, drop_last=True),
    "torchdata, distributed": _stateful(lambda: list(torch.rand(92, 2)), _shared_out),
    "torchdata, stream with state": _stateful(Counting),
}
NOISY: dict[str, Make] = {  # that draw in workers
    "augmented": shuffled(Augmented),
    "random collate": shuffled(collate_fn=mixed),
    "a batch at once": shuffled(Whole, drop_last=True),
}
