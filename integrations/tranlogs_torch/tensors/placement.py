"""The places of the parts of parameters that this process holds, noted here by the code that lays parameters out.

A parameter of which this process holds nothing that counts may still be whole in its memory: a copy of what another one trains.

Private name of torch that this module uses: `DTensor._local_tensor`.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch

from tranlogs.base.types import Piece


class Place(NamedTuple):
    """Place of a part: the shape of the whole, and the part's box or flat range."""

    whole: tuple[int, ...]
    piece: Piece


NOTHING = Piece("flat", (0,), (0,))


class ShardLayout(NamedTuple):
    """Layout of a parameter over the processes.

    Attributes:
        place: of this process's part; None if it holds all of it.
        mesh: names, shape and ranks of the processes, as plain values.
        words: the layout in words: equal on all processes, and different for a different layout.
        empty: an empty part, if the parameter is another process's and this process has a copy in memory.
    """

    place: Place | None
    mesh: dict[str, Any]
    words: str
    empty: torch.Tensor | None = None


KNOWN: dict[int, tuple[weakref.ref[torch.Tensor], ShardLayout]] = {}  # no attributes: a pickled model would carry them along


def note_layout(parameter: torch.Tensor, layout: ShardLayout) -> None:
    """Note the layout of a parameter."""
    number = id(parameter)
    KNOWN[number] = weakref.ref(parameter, lambda _: KNOWN.pop(number, None)), layout


def forget(parameter: torch.Tensor) -> None:
    """Mark a parameter as an ordinary one again."""
    KNOWN.pop(id(parameter), None)


def layout_of(parameter: torch.Tensor) -> ShardLayout | None:
    """Return the layout of a parameter; None for an ordinary one."""
    found = KNOWN.get(id(parameter))
    return found[1] if found is not None and found[0]() is parameter else None


def empty_of(parameter: torch.Tensor) -> torch.Tensor | None:
    """Return the empty part that this process holds of another process's parameter; None for its own parameter."""
    layout = layout_of(parameter)
    return None if layout is None else layout.empty


def is_dtensor(tensor: Any) -> bool:
    """Return True for a DTensor."""
    return hasattr(tensor, "_local_tensor")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a tensor, as a plain tensor that shares its memory; empty for another process's tensor."""
    empty = empty_of(tensor) if KNOWN else None  # it is asked for each tensor at each step
    return in_memory(tensor) if empty is None else empty


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor in this process's memory, also if it is a copy of another process's tensor."""
    inner: Any = getattr(tensor, "_local_tensor", None)
    if inner is None:
        return tensor
    held: torch.Tensor = inner.wait() if hasattr(inner, "wait") else inner  # a collective may be on its way
    return held
