"""Classes of loaders and data sets.

A DataLoader's `for` is ours: Python looks `__iter__` up on the type, so the loader gets a subclass of its class.

`worker_seeds="batch"` makes the random numbers that DataLoader workers draw a function of the batch. A worker's generators go
on from batch to batch, so what it draws depends on all that it has drawn since it was made, and no resume can bring that back
without loading everything again. With a seed for each index batch a batch's random numbers depend on nothing else: not on the
batches before it, not on the number of workers. The seed is derived from the random state before the first draw of the epoch,
which is recorded; nothing is drawn for it. It travels with the indices; a wrapper around the dataset, which only the worker
sees, sets torch's, numpy's and Python's generators by it before it loads, and collating follows in the same process.
"""

from __future__ import annotations

import copyreg
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash
from torch.utils.data import DataLoader, get_worker_info

from tranlogs.base.errors import UsageError


def iterating(loader: Any, plain: Any, iterate: Callable[[], Iterator[Any]], **marks: Any) -> type:
    """Make a subclass of the loader's class whose `iter` is `iterate()`. Copies of the loader are of the plain class.

    Args:
        loader: the only object that gets the class.
        plain: its class.
        iterate: returns the iterator.
        marks: attributes of the subclass.
    """

    def __iter__(self: Any) -> Iterator[Any]:
        return iterate() if self is loader else plain.__iter__(self)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        found = plain.__reduce_ex__(self, protocol)
        if isinstance(found, str):
            return found
        make, arguments, *rest = found
        own = type(self)
        if make is copyreg.__newobj__:  # type: ignore[attr-defined]  # pickle compares its class with the object's
            make = object.__new__
        return (plain if make is own else make, tuple(plain if a is own else a for a in arguments), *rest)

    return type(
        plain.__name__,
        (plain,),
        {
            "__iter__": __iter__,
            "__reduce_ex__": __reduce_ex__,
            "__module__": plain.__module__,
            "__doc__": plain.__doc__,
            "__qualname__": plain.__qualname__,
            "_tranlogs_plain": plain,
            **marks,
        },
    )


class DatasetProxy:
    """A map-style dataset that is the given one in all but how a batch is loaded."""

    def __init__(self, dataset: Any) -> None:
        self.__dict__["_dataset"] = dataset

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of the dataset: a worker's code may ask isinstance(get_worker_info().dataset, ...)."""
        return type(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if name == "_dataset":  # while it is being unpickled
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)

    def __reduce__(self) -> Any:
        return type(self), (self._dataset,)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        return self._dataset[index]

    def __getitems__(self, indices: Any) -> Any:
        if getattr(self._dataset, "__getitems__", None):
            return self._dataset.__getitems__(indices)
        return [self._dataset[index] for index in indices]


def advice_for_other_loader(thing: Any) -> str | None:
    """Return what to write in place of a loader that is no torch DataLoader; None for what is no loader."""
    kind = f"{type(thing).__module__.partition('.')[0]}'s {type(thing).__name__}"
    attributes = vars(thing) if hasattr(thing, "__dict__") else {}
    inner = next((name for name, value in attributes.items() if isinstance(value, DataLoader)), None)
    if inner is not None:
        return (
            f"expected a torch DataLoader, got {kind}. It iterates over the one in its attribute {inner!r}: take the "
            f"batches from that loader, optimizer.batches(loader.{inner}, until=N), and prepare them in the body of the "
            "loop"
        )
    if hasattr(thing, "__iter__") and ("dataset" in attributes or "Loader" in type(thing).__name__):
        return (
            f"expected a torch DataLoader, got {kind}, whose position cannot be recovered. Make a "
            "torch.utils.data.DataLoader of its dataset for optimizer.batches(loader, until=N); or take the steps from "
            "optimizer.steps(until=N, stateless=True), and track an object whose state_dict and load_state_dict hold the "
            "position in the data"
        )
    return None


class Seeded(NamedTuple):
    """An index batch of the sampler, and a seed for the worker that loads it."""

    indices: Any
    seed: int


class SeededDataset(DatasetProxy):
    """A map-style dataset to which the indices of a batch come with a seed; else it is the dataset itself."""

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(_unpack(index))

    def __getitems__(self, indices: Any) -> Any:
        return super().__getitems__(_unpack(indices))


def seeded(epoch: int, first_draw: dict[str, Any], number: int, indices: Any) -> Seeded:
    """Return an index batch with its seed: a hash of its number, the epoch, and the random state before the first draw."""
    state = xxhash.xxh3_64(first_draw["torch"].numpy().tobytes(), seed=epoch)
    for own in first_draw.get("generators", ()):
        state.update(own.numpy().tobytes())
    state.update(number.to_bytes(8, "little"))
    return Seeded(indices, state.intdigest() >> 1)


def check_workers(loader: DataLoader[Any]) -> None:
    """Refuse a loader whose persistent workers have the dataset as it is."""
    if loader.persistent_workers and getattr(loader, "_iterator", None) is not None:
        raise UsageError(
            'worker_seeds="batch": the persistent workers of this loader are already running and cannot receive seeds. '
            "Track the loader before anything iterates over it"
        )


def _unpack(indices: Any) -> Any:
    if not isinstance(indices, Seeded):
        return indices
    if get_worker_info() is not None:
        seed = indices.seed
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
    return indices.indices
