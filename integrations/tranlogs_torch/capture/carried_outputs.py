"""Outputs of a model that come back as its inputs in a later unit: a hidden state that a loop carries from batch to batch.

The log does not have such a state unless it is tracked. Whoever does not know that resumes with a hidden state of zeros, and
gets other weights. Watched are the first passes of each process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

PASSES_MAX = 50  # that are watched
_DEPTH_MAX = 4
_TENSORS_MAX = 64

OnFound = Callable[[list[torch.Tensor]], None]


class CarriedOutputs:
    """Watches the inputs and outputs of the run's modules.

    Args:
        unit: returns the number of the running unit.
        on_found: called once, with inputs that a module has returned in an earlier unit; with none of them at the end of the
            watch.
    """

    def __init__(self, unit: Callable[[], int], on_found: OnFound) -> None:
        self._unit, self._on_found = unit, on_found
        self._left = PASSES_MAX
        self._now: set[StorageWeakRef] = set()  # storages of what was returned in the unit of `_number`
        self._earlier: set[StorageWeakRef] = set()  # in the unit before it
        self._number = -1

    @property
    def is_over(self) -> bool:
        """True if no further pass is watched."""
        return self._left == 0

    def before(self, inputs: Any) -> None:
        """Look whether the inputs of a pass that begins were returned in an earlier unit."""
        if self._number != self._unit():
            self._number = self._unit()
            if self._now:
                self._earlier, self._now = self._now, set()
        if not self._earlier:
            return
        carried = [tensor for tensor in _tensors(inputs) if _is_within(tensor, self._earlier)]
        if carried:
            self._left = 0
            self._on_found(carried)

    def after(self, inputs: Any, outputs: Any) -> None:
        """Keep what a pass returned, without what it was given: a view of a batch is no state."""
        self._left = max(0, self._left - 1)
        self._now |= storages(_tensors(outputs)) - storages(_tensors(inputs))
        if self.is_over:
            self._now, self._earlier = set(), set()
            self._on_found([])


def is_any_untracked(carried: list[torch.Tensor], tracked: Iterable[Any], weights: Iterable[torch.Tensor]) -> bool:
    """Return True if nothing that comes back after a crash has the values of one of the carried tensors.

    Args:
        carried: inputs that a module has returned in an earlier unit.
        tracked: objects with a state_dict.
        weights: parameters and buffers.
    """
    kept = storages(weights)
    contents = [thing.state_dict() for thing in tracked] if carried else []
    rest = [tensor for tensor in carried if not _is_within(tensor, kept)]
    return any(not any(_holds(content, tensor) for content in contents) for tensor in rest)


def storages(tensors: Iterable[torch.Tensor]) -> set[StorageWeakRef]:
    """Return references to the memory of tensors, which do not keep it alive."""
    return {found for tensor in tensors if (found := _storage(tensor)) is not None}


def _is_within(tensor: torch.Tensor, memory: set[StorageWeakRef]) -> bool:
    return bool(storages([tensor]) & memory)


def _holds(content: Any, tensor: torch.Tensor) -> bool:
    """Return True if the content of a state_dict has the values of a tensor: as a tensor, an array or nested lists."""
    if isinstance(content, torch.Tensor):
        return content.shape == tensor.shape and bool((content.cpu() == tensor.detach().cpu()).all())
    if isinstance(content, np.ndarray):
        return bool(content.shape == tuple(tensor.shape) and (content == tensor.detach().cpu().numpy()).all())
    if isinstance(content, dict):
        return any(_holds(part, tensor) for part in content.values())
    if isinstance(content, (list, tuple)):
        return any(_holds(part, tensor) for part in content) or (bool(content) and content == tensor.tolist())
    return False


def _tensors(values: Any) -> Iterable[torch.Tensor]:
    found = []
    for tensor in _walk(values, _DEPTH_MAX):
        found.append(tensor)
        if len(found) == _TENSORS_MAX:
            break
    return found


def _walk(value: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _walk(part, depth - 1)


def _storage(tensor: torch.Tensor) -> StorageWeakRef | None:
    """Return a reference that does not keep the memory alive; None for tensors that have none of their own."""
    try:
        return StorageWeakRef(tensor.untyped_storage())
    except (NotImplementedError, RuntimeError):  # sparse, batched by vmap, ...
        return None
