"""`worker_seeds="batch"`: random numbers drawn inside DataLoader workers, made a function of the batch.

A worker's generators go on from batch to batch, so what it draws depends on all that it has drawn since it was made, and
no resume can bring that back without loading everything again. With a seed for each index batch a batch's random numbers
depend on nothing else: not on the batches before it, not on the number of workers. The seed is derived from the random
state before the first draw of the epoch, which is recorded; nothing is drawn for it. It travels with the indices; a
wrapper around the dataset, which only the worker sees, sets torch's, numpy's and Python's generators by it before it
loads, and collating follows in the same process.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash
from torch.utils.data import DataLoader, get_worker_info

from tranlogs.base.errors import UsageError

from .loader_class import DatasetProxy


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
