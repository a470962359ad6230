"""A digest of weights and optimizer state, for boundaries that tell of steps without records of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import xxhash

from .fingerprint import memory_of
from .state import TorchState


def digest_state(state: TorchState) -> bytes:
    """Return the digest of all weights and optimizer states, 8 bytes. How often it is taken depends on what it costs."""
    tensors: list[torch.Tensor] = list(state.parameters.values())
    others = list[Any]()
    for optimizer in state.optimizers.values():
        for kept in optimizer.state.values():
            for value in _leaves(kept):
                (tensors if isinstance(value, torch.Tensor) else others).append(value)
    hasher = xxhash.xxh3_64(repr(others).encode())
    for tensor in tensors:
        hasher.update(memory_of(tensor.to_dense() if tensor.is_sparse else tensor).data)
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
