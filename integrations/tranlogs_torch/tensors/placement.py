"""The parts of tensors that this process holds.

Private name of torch that this module uses: `DTensor._local_tensor`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from tranlogs.base.types import Piece


class Place(NamedTuple):
    """Place of a part: the shape of the whole, and the part's box or flat range."""

    whole: tuple[int, ...]
    piece: Piece


def is_dtensor(tensor: Any) -> bool:
    """Return True for a DTensor."""
    return hasattr(tensor, "_local_tensor")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a tensor, as a plain tensor that shares its memory."""
    inner: Any = getattr(tensor, "_local_tensor", None)
    if inner is None:
        return tensor
    held: torch.Tensor = inner.wait() if hasattr(inner, "wait") else inner  # a collective may be on its way
    return held
