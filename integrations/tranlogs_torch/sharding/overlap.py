"""Flat ranges of a tensor as boxes: offset and length in each dimension, for the exchange between processes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from ..tensors.placement import Place

Shape = tuple[int, ...]
Box = tuple[Shape, Shape]  # offset and length in each dimension


def boxes(shape: Sequence[int], first: int, end: int) -> Iterator[Box]:
    """Cut the elements from `first` to `end`, in C order, into boxes: in that order, and as few as there can be."""
    if first >= end or len(shape) < 2:
        if first < end:
            yield ((first,), (end - first,)) if shape else ((), ())
        return
    row = math.prod(shape[1:])
    start, stop = -(-first // row), end // row  # rows that are whole
    if first < start * row:
        yield from _within(shape, start - 1, first, min(end, start * row))
    if start < stop:
        yield (start, *[0] * (len(shape) - 1)), (stop - start, *shape[1:])
    if start <= stop and max(first, stop * row) < end:
        yield from _within(shape, stop, stop * row, end)


def _within(shape: Sequence[int], number: int, first: int, end: int) -> Iterator[Box]:
    """Return the box of a range that lies within one row."""
    at = number * math.prod(shape[1:])
    for offset, length in boxes(shape[1:], first - at, end - at):
        yield (number, *offset), (1, *length)


def cut(tensor: torch.Tensor, place: Place | None) -> list[tuple[Shape, torch.Tensor]]:
    """Return a part as views that are boxes, each with its offset in the whole; none for an empty range."""
    if place is None:
        return [((0,) * tensor.dim(), tensor)]
    if place.piece.kind == "box":
        return [(place.piece.offset, tensor)]
    found, at, (first,) = [], 0, place.piece.offset
    for offset, length in boxes(place.whole, first, first + tensor.numel()):
        size = math.prod(length)
        found.append((offset, tensor[at : at + size].view(length)))
        at += size
    return found
