"""Plan of a transfer: the parts of the former ranks' tensors that fall into the boxes that a process holds now.

A process that cannot read a former rank's checkpoint is sent its parts. Sender and receiver compute them from the same lists:
nothing but the numbers themselves is sent.

Flat ranges of a tensor are boxes here: offset and length in each dimension.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from tranlogs.base.config import MIB
from tranlogs.base.types import ITEMSIZE

from ..tensors.arrays import Place

_BUNDLE_BYTES = 16 * MIB


class StoredBox(NamedTuple):
    """A box of a tensor of a former rank. Its elements lie one after another in the stored tensor.

    Attributes:
        name: of the stored tensor.
        dtype: of its elements.
        offset: of the box in the whole tensor.
        length: of the box in each dimension.
        whole: the shape of the whole tensor.
        parameter: the parameter that is laid out in the same way; "" for what is whole on each rank (a count of steps).
        first: the box's first element in the stored tensor.
    """

    name: str
    dtype: str
    offset: Shape
    length: Shape
    whole: Shape
    parameter: str
    first: int


class BoxPiece(NamedTuple):
    """Rows of a stored box that fall into a box of the process that needs them.

    Attributes:
        box: the stored box.
        offset: of the piece in the whole tensor.
        length: of the piece in each dimension.
    """

    box: StoredBox
    offset: Shape
    length: Shape

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return math.prod(self.length) * ITEMSIZE[self.box.dtype]


def common(a: Box, b: Box) -> Box | None:
    """Return the box that falls into both; None if no element does."""
    bounds = [(max(i, j), min(i + m, j + n)) for i, m, j, n in zip(*a, *b, strict=True)]
    if any(first >= end for first, end in bounds):
        return None
    return tuple(first for first, _ in bounds), tuple(end - first for first, end in bounds)


def bundles(stored: Iterable[StoredBox], wanted: Mapping[str, Sequence[Box]]) -> Iterator[list[BoxPiece]]:
    """Yield the pieces of stored boxes that fall into the boxes that a process needs, in portions of bounded size.

    Args:
        stored: boxes of a former rank.
        wanted: the boxes of the process, by tensor.
    """
    bundle: list[BoxPiece] = []
    size = 0
    for piece in pieces(stored, wanted):
        if bundle and size + piece.nbytes > _BUNDLE_BYTES:
            yield bundle
            bundle, size = [], 0
        bundle.append(piece)
        size += piece.nbytes
    if bundle:
        yield bundle


def pieces(stored: Iterable[StoredBox], wanted: Mapping[str, Sequence[Box]]) -> Iterator[BoxPiece]:
    """Yield the pieces of `bundles` one by one. Of each, the rows that have to be read are of bounded size."""
    for box in stored:
        for target in wanted.get(box.name, ()):
            found = common((box.offset, box.length), target)
            if found is not None:
                yield from _in_rows(box, *found)


def _in_rows(box: StoredBox, offset: Shape, length: Shape) -> Iterator[BoxPiece]:
    if not length:
        yield BoxPiece(box, offset, length)
        return
    rows = max(1, _BUNDLE_BYTES // (math.prod(box.length[1:]) * ITEMSIZE[box.dtype]))
    for first in range(0, length[0], rows):
        yield BoxPiece(box, (offset[0] + first, *offset[1:]), (min(rows, length[0] - first), *length[1:]))


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
