"""Plan of a transfer: the parts of the former ranks' tensors that fall into the boxes that a process holds now.

A process that cannot read a former rank's checkpoint is sent its parts. Sender and receiver compute them from the same lists:
nothing but the numbers themselves is sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tranlogs.base.config import MIB
from tranlogs.base.types import ITEMSIZE

from ..sharding.overlap import Box, Shape

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
