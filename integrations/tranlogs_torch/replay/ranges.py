"""Division of tensors into ranges of elements that are redone together, with the same bits as whole tensors.

A kernel processes full vectors of a tensor by vector instructions, and the elements after the last full vector by scalar ones,
which may round otherwise. With several threads each thread has a part of a large tensor, and that part ends in the same way. So
an element keeps its bits in another tensor if full vectors stay full vectors:

- Tensors are merged, or a tensor is cut, at multiples of `VECTOR_BYTES` only. A tensor with elements after its last full vector
  ends a range.
- With several threads, each thread's part of a tensor and of a range consists of full vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tranlogs.base.types import ITEMSIZE

VECTOR_BYTES = 128  # two vectors of 64 bytes, which is what an unrolled loop takes at once
_SERIAL_ELEMENTS_MAX = 32_768  # of a tensor that torch does not divide among threads
_PARTS_MAX = 8


class Part(NamedTuple):
    """Elements `begin` to `end` of a parameter, in the order of memory."""

    name: str
    begin: int
    end: int


@dataclass(frozen=True, eq=False, slots=True)
class Range:
    """Consecutive elements of consecutive gradients in a payload. It is compared by identity."""

    parts: tuple[Part, ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return sum(part.end - part.begin for part in self.parts)


class Extent(NamedTuple):
    """A tensor in a payload.

    Attributes:
        name: name of the parameter.
        shape: its shape.
        dtype: its dtype.
        offset: offset in the payload in bytes.
        is_in_order: True if it lies there in the order of its elements.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    is_in_order: bool = True

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return ITEMSIZE[self.dtype]

    @property
    def end(self) -> int:
        """Offset of what follows."""
        return self.offset + self.elements * self.itemsize


def divide(extents: Sequence[Extent], elements_max: int, threads: int) -> Iterator[Range]:
    """Merge small tensors that follow each other, and cut large ones. Each tensor must satisfy `is_even`.

    Args:
        extents: tensors of one dtype, in the order of the payload.
        elements_max: of a range, about.
        threads: number of threads that a kernel uses.
    """
    merged_max = elements_max if threads == 1 else min(elements_max, _SERIAL_ELEMENTS_MAX)
    parts: list[Part] = []
    count, end = 0, -1
    for extent in extents:
        if parts and (extent.offset != end or count + extent.elements > merged_max):
            yield Range(tuple(parts))
            parts, count = [], 0
        if extent.elements > merged_max:
            yield from _cut(extent, elements_max, threads)
            continue
        parts.append(Part(extent.name, 0, extent.elements))
        count, end = count + extent.elements, extent.end
        if extent.elements * extent.itemsize % VECTOR_BYTES:
            end = -1  # the last one of its range
    if parts:
        yield Range(tuple(parts))


def is_even(count: int, itemsize: int, threads: int) -> bool:
    """Return True if each thread's part of a tensor, but for the last one, consists of full vectors."""
    if threads == 1 or count <= _SERIAL_ELEMENTS_MAX:
        return True
    shares = min(threads, -(-count // _SERIAL_ELEMENTS_MAX))
    return -(-count // shares) * itemsize % VECTOR_BYTES == 0


def _cut(extent: Extent, elements_max: int, threads: int) -> Iterator[Range]:
    """Cut a tensor into ranges that are even; if it is not much larger than one, and is even itself, leave it whole."""
    if extent.elements <= elements_max:
        yield Range((Part(extent.name, 0, extent.elements),))
        return
    unit = VECTOR_BYTES // extent.itemsize * min(threads, _PARTS_MAX)
    size = max(unit, elements_max // unit * unit)
    if not is_even(size, extent.itemsize, threads):
        size = _SERIAL_ELEMENTS_MAX
    begin = 0
    while begin < extent.elements:
        left = extent.elements - begin
        taken = size if left > size else left if is_even(left, extent.itemsize, threads) else _SERIAL_ELEMENTS_MAX
        yield Range((Part(extent.name, begin, begin + taken),))
        begin += taken
