"""The epochs that `LoggedOptimizer.epochs` yields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .loader_position import LoaderPosition


class Epoch(int):
    """The number of an epoch, to be iterated over for its batches: `sampler.set_epoch(epoch)`, `for batch in epoch`.

    After a crash the loop may enter the epoch in its middle: `epoch.enumerate()` has the true numbers of the batches.
    Copies and pickles of an epoch are plain integers.
    """

    _position: LoaderPosition

    @classmethod
    def of(cls, position: LoaderPosition, number: int) -> Epoch:
        """Return the epoch of this number in its loop, at which the position in a loader is."""
        epoch = cls(number)
        epoch._position = position
        return epoch

    @property
    def batch(self) -> int:
        """Number of batches of this epoch that were handed out; before the loop over it, the index of the next one."""
        return self._position.batch

    @property
    def dataset(self) -> Any:
        """The loader's dataset: training functions that are given an epoch in place of a loader print its length."""
        return self._position.loader.dataset

    @property
    def batch_size(self) -> int | None:
        """The loader's batch size."""
        return self._position.loader.batch_size

    @property
    def sampler(self) -> Any:
        """The loader's sampler."""
        return self._position.source.index_sampler

    def enumerate(self, start: int = 0) -> Iterator[tuple[int, Any]]:
        """Yield each batch with its number in the epoch, from `start`; plain `enumerate` counts from 0 after a crash."""
        for data in self._position.rest_of_epoch():
            yield start + self._position.batch - 1, data

    def __reduce_ex__(self, protocol: Any) -> Any:
        return int, (int(self),)

    def __len__(self) -> int:
        """Return the number of batches of the whole epoch, as `len(loader)` does."""
        return len(self._position.loader)

    def __iter__(self) -> Iterator[Any]:
        return self._position.rest_of_epoch()


# `torch.save({"epoch": epoch})` writes a call of `int`, which `torch.load(weights_only=True)` refuses unless it is listed.
torch.serialization.add_safe_globals([int])
