"""A digest of weights and optimizer state, for boundaries that tell of steps without records of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import xxhash

from tranlogs.training import FULL_BYTES_MAX, some_bytes, window_of

from ..tensors.arrays import memory_order
from ..tensors.placement import local
from .fingerprint import memory_of
from .state import TorchState

_SAMPLE_BYTES = 4096  # of each tensor in the window of a step, where not all bytes are hashed


def digest_state(state: TorchState, step: int) -> bytes:
    """Return 8 bytes: the digest of all weights and optimizer states, or of some of their bytes beyond 64 MiB.

    Which bytes these are depends on the step.
    """
    tensors: list[torch.Tensor] = list(state.parameters.values())
    others = list[Any]()
    for optimizer in state.optimizers.values():
        for kept in optimizer.state.values():
            for value in _leaves(kept):
                (tensors if isinstance(value, torch.Tensor) else others).append(value)
    hasher = xxhash.xxh3_64(repr(others).encode())
    if sum(local(tensor).nbytes for tensor in tensors if not tensor.is_sparse) <= FULL_BYTES_MAX:
        for tensor in tensors:
            hasher.update(memory_of(_dense(tensor)).data)
    else:
        for index in window_of(len(tensors), step):
            flat = memory_order(local(_dense(tensors[index])).detach()).reshape(-1).view(torch.uint8)
            hasher.update(some_bytes(flat, step, _SAMPLE_BYTES).contiguous().cpu().numpy().data)
    return hasher.intdigest().to_bytes(8, "little")


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the tensors in a state, and plain values; what an optimizer keeps besides shows in these."""
    if isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, (torch.Tensor, bool, int, float, complex, str, type(None))):
        yield value


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_dense() if tensor.is_sparse else tensor
