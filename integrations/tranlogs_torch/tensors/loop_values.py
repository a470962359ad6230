"""Torch's values in what a loop remembers: tensors of any device, generators, dtypes and devices."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader

from tranlogs.training import Unstorable

from . import arrays

_PLAIN = (torch.dtype, torch.device, torch.Size)


class TorchValues:
    """Stores and restores torch's values.

    A tensor of the CPU that requires no gradient is stored as it is, any other as ("tensor", device, requires_grad, tensor).
    A generator is stored as ("torch.Generator", device, state).
    """

    def store(self, value: Any) -> Any:
        """Return the stored form of a value of torch; None for any other value."""
        if isinstance(value, torch.Tensor):
            return _store_tensor(value)
        if type(value) is torch.Generator:
            return "torch.Generator", str(value.device), value.get_state()
        if isinstance(value, DataLoader):
            raise Unstorable("is a DataLoader. Track it, so that its position comes back: optimizer.track(loader=...)")
        return value if type(value) in _PLAIN else None

    def count_bytes(self, value: Any) -> int:
        """Return the size of the tensor that a stored value holds."""
        held = value[-1] if type(value) is tuple else value
        return int(held.nbytes) if isinstance(held, torch.Tensor) and held.layout is torch.strided else 0

    def restore(self, old: Any, stored: Any) -> Any:
        """Return the value of a stored one: a new tensor, or the generator that is there."""
        if isinstance(stored, torch.Tensor):
            return _new(stored, "cpu")
        if type(stored) is tuple and stored[0] == "tensor":
            return _new(stored[3], stored[1]).requires_grad_(stored[2])
        if type(stored) is tuple and stored[0] == "torch.Generator":
            is_alike = type(old) is torch.Generator and str(old.device) == stored[1]
            target = old if is_alike else torch.Generator(stored[1])
            return target.set_state(stored[2].clone())
        if type(stored) in _PLAIN:
            return stored
        raise Unstorable("cannot be read: it was written by another version of TranLogs")

    def adapt(self, value: Any) -> Any:
        """Prepare a stored value for the encoder of trees."""
        return arrays.adapt(value)


def _store_tensor(value: torch.Tensor) -> Any:
    if isinstance(value, torch.nn.Parameter):
        raise Unstorable(
            "is a Parameter. Parameters are recovered with their module: give the module as model=..., or track it"
        )
    if type(value) not in (torch.Tensor, torch.nn.Buffer):
        raise Unstorable(
            f"is a {type(value).__name__}, which cannot be remembered. Give an object with state_dict() to track(...)"
        )
    if value.layout not in (torch.strided, torch.sparse_coo) or value.dtype not in arrays.NAMES:
        raise Unstorable(f"is a tensor of layout {value.layout} and dtype {value.dtype}, which cannot be stored")
    held = value.detach()
    if value.device.type == "cpu" and not value.requires_grad:
        return held
    return "tensor", str(value.device), value.requires_grad, held


def _new(tensor: torch.Tensor, device: str) -> torch.Tensor:
    copy = tensor.clone() if tensor.layout is torch.sparse_coo else tensor.clone(memory_format=torch.preserve_format)
    return copy.to(device)
