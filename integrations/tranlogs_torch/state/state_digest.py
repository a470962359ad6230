"""A digest of weights and optimizer state, for boundaries that tell of steps without records of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import xxhash

from .fingerprint import memory_of
from .state import TorchState


def digest_state(state: TorchState) -> bytes:
    """Return the digest of all weights and optimizer states, 8 bytes. How often it is taken depends on what it costs.

    States are read in the order of the parameter groups, not in that in which they came to be: checkpoints do not keep it.
    """
    tensors: list[torch.Tensor] = list(state.parameters.values())
    others = list[Any]()
    for optimizer in state.optimizers.values():
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for key in dict.fromkeys([*parameters, *optimizer.state]):
            for value in _leaves(optimizer.state.get(key, {})):
                (tensors if isinstance(value, torch.Tensor) else others).append(value)
    hasher = xxhash.xxh3_64(repr(others).encode())
    for tensor in tensors:
        hasher.update(memory_of(tensor.to_dense() if tensor.is_sparse else tensor).data)
    return hasher.intdigest().to_bytes(8, "little")


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the tensors in a state, and plain values; what an optimizer keeps besides shows in these."""
    if isinstance(value, dict):
        for _, item in sorted(value.items(), key=lambda pair: str(pair[0])):
            yield from _leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, (torch.Tensor, bool, int, float, complex, str, type(None))):
        yield value
