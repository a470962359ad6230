"""What of the tensors of ranks of before goes to which process: what falls into the boxes that it holds now, and no more.

Sender and receiver work it out for themselves, from the same lists: nothing but the numbers themselves is sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from tranlogs.base.config import MIB
from tranlogs.base.types import ITEMSIZE

from ..sharding.overlap import Box, Shape
from ..tensors import arrays

_BUNDLE_BYTES = 16 * MIB


class Told(NamedTuple):
    """What is told of a box of a tensor of a rank of before.

    `parameter` is the one as which it is laid out; "" for what is whole on each rank (a count of steps).
    """

    name: str
    dtype: str
    offset: Shape
    length: Shape
    whole: Shape
    parameter: str


class Piece(NamedTuple):
    """What goes to one process of such a box: some rows of what falls into a box of its own."""

    told: Told
    offset: Shape  # in the whole
    length: Shape

    @property
    def nbytes(self) -> int:
        """On the way."""
        return math.prod(self.length) * ITEMSIZE[self.told.dtype]

    def cut_from(self, box: torch.Tensor) -> bytes:
        """The numbers, in C order, from the box that was told of."""
        found = box[tuple(slice(a - b, a - b + n) for a, b, n in zip(self.offset, self.told.offset, self.length, strict=True))]
        return arrays.flat_bytes(found.detach().cpu().resolve_conj().resolve_neg().contiguous()).tobytes()


def common(a: Box, b: Box) -> Box | None:
    """The box that falls into both; None if no element does."""
    bounds = [(max(i, j), min(i + m, j + n)) for i, m, j, n in zip(*a, *b, strict=True)]
    if any(first >= end for first, end in bounds):
        return None
    return tuple(first for first, _ in bounds), tuple(end - first for first, end in bounds)


def bundles(told: Iterable[Told], wanted: Mapping[str, Sequence[Box]]) -> Iterator[list[Piece]]:
    """What of these boxes falls into those that a process wants, by tensor; in the portions in which it is sent."""
    bundle: list[Piece] = []
    size = 0
    for one in told:
        for box in wanted[one.name]:
            for piece in _pieces(one, box):
                if bundle and size + piece.nbytes > _BUNDLE_BYTES:
                    yield bundle
                    bundle, size = [], 0
                bundle.append(piece)
                size += piece.nbytes
    if bundle:
        yield bundle


def _pieces(told: Told, wanted: Box) -> Iterator[Piece]:
    found = common((told.offset, told.length), wanted)
    if found is None:
        return
    offset, length = found
    if not length:
        yield Piece(told, offset, length)
        return
    rows = max(1, _BUNDLE_BYTES // (math.prod(length[1:]) * ITEMSIZE[told.dtype]))
    for first in range(0, length[0], rows):
        yield Piece(told, (offset[0] + first, *offset[1:]), (min(rows, length[0] - first), *length[1:]))
