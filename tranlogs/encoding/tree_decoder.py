"""The decoder of trees. It checks every length before it allocates memory."""

from __future__ import annotations

import math
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.config import TREE_DEPTH_MAX
from ..base.types import ITEMSIZE, AnyArray, Array, Extension, SparseArray, is_dense
from .tree_values import C128, F64, I64, NUMPY_DTYPES, U32, MalformedTree, to_numpy


class Decoder:
    """Decodes values one after another.

    Attributes:
        data: the encoded bytes.
        at: offset of the next value.
        arrays: returns an out-of-line array, given its index and an array of the same layout without data.
        make_array: makes the framework's tensor of an array.
        make_extension: makes the framework's value of an extension; None to return the extension.
    """

    def __init__(
        self,
        data: bytes,
        arrays: Callable[[int, AnyArray], AnyArray] | None,
        make_array: Callable[[AnyArray], Any] | None,
        make_extension: Callable[[Extension], Any] | None,
    ) -> None:
        self.data, self.at, self.arrays = data, 0, arrays
        self.make_array, self.make_extension = make_array or _default_array, make_extension

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        start, end = self.at, self.at + count
        if end > len(self.data):
            raise MalformedTree(f"expected {count} bytes at offset {start}, but the data end at {len(self.data)}")
        self.at = end
        return self.data[start:end]

    def length(self) -> int:
        """Return the next 32-bit length."""
        at = self.at
        (n,) = U32.unpack_from(self.data, at)
        self.at = at + 4
        return int(n)

    def text(self) -> str:
        """Return the next string."""
        return self.take(self.length()).decode("utf-8", "surrogatepass")

    def read(self, depth: int) -> Any:
        """Return the next value."""
        if depth > TREE_DEPTH_MAX + 1:
            raise MalformedTree(f"nested deeper than {TREE_DEPTH_MAX}")
        at = self.at
        tag = self.data[at]
        self.at = at + 1
        method = _READERS.get(tag)
        if method is None:
            if tag in _SIMPLE:
                return _SIMPLE[tag]
            raise MalformedTree(f"unknown tag {bytes([tag])!r} at offset {at}")
        return method(self, depth + 1)

    def _counted(self) -> int:
        count = self.length()
        if count > len(self.data) - self.at:  # Every item has a tag at least.
            raise MalformedTree(f"expected {count} items, but {len(self.data) - self.at} bytes are left")
        return count

    def _int(self, depth: int) -> int:
        at = self.at
        self.at = at + 8
        return int(I64.unpack_from(self.data, at)[0])

    def _bigint(self, depth: int) -> int:
        return int.from_bytes(self.take(self.length()), "little", signed=True)

    def _float(self, depth: int) -> float:
        at = self.at
        self.at = at + 8
        return float(F64.unpack_from(self.data, at)[0])

    def _complex(self, depth: int) -> complex:
        return complex(*C128.unpack(self.take(16)))

    def _str(self, depth: int) -> str:
        return self.text()

    def _bytes(self, depth: int) -> bytes:
        return self.take(self.length())

    def _list(self, depth: int) -> list[Any]:
        return [self.read(depth) for _ in range(self._counted())]

    def _tuple(self, depth: int) -> tuple[Any, ...]:
        return tuple([self.read(depth) for _ in range(self._counted())])

    def _set(self, depth: int) -> set[Any]:
        return set(self._list(depth))

    def _frozenset(self, depth: int) -> frozenset[Any]:
        return frozenset(self._list(depth))

    def _dict(self, depth: int) -> dict[Any, Any]:
        return {self.read(depth): self.read(depth) for _ in range(self._counted())}

    def _ordered(self, depth: int) -> OrderedDict[Any, Any]:
        return OrderedDict(self._dict(depth))

    def _counter(self, depth: int) -> Counter[Any]:
        return Counter(self._dict(depth))

    def _scalar(self, depth: int) -> Any:
        name = self.text()
        if name not in NUMPY_DTYPES:
            raise MalformedTree(f"unknown dtype {name!r}")
        return np.frombuffer(self.take(ITEMSIZE[name]), name)[0]

    def _header(self) -> Array:
        flag, dtype, rank = self.take(1)[0], self.text(), 0
        if dtype not in ITEMSIZE:
            raise MalformedTree(f"unknown dtype {dtype!r}")
        rank = self.take(1)[0]
        shape = struct.unpack(f"<{rank}Q", self.take(8 * rank))
        strides = struct.unpack(f"<{rank}q", self.take(8 * rank)) if flag & 2 else None
        if math.prod(shape) * ITEMSIZE[dtype] > 1 << 48:
            raise MalformedTree(f"the shape {shape} of an array is too large")
        if strides is not None and not is_dense(shape, strides):
            raise MalformedTree(f"strides {strides} do not fit to shape {shape}")
        array = Array(dtype, (0,), np.empty(0, np.uint8), strides, bool(flag & 1))
        array.shape = shape  # The data follow in the tree, or are out of line.
        return array

    def _raw_array(self, tag: bytes) -> Array:
        array = self._header()
        if tag == b"a":
            array.data = np.frombuffer(self.take(math.prod(array.shape) * ITEMSIZE[array.dtype]), np.uint8)
            return array
        if tag != b"A" or self.arrays is None:
            raise MalformedTree("no arrays out of line are given" if tag == b"A" else f"{tag!r} is not an array's tag")
        found = self.arrays(self.length(), array)
        if not isinstance(found, Array) or (found.dtype, found.shape) != (array.dtype, array.shape):
            raise MalformedTree(f"the array out of line is not {array.dtype}{list(array.shape)}")
        return found

    def _array(self, depth: int) -> Any:
        return self.make_array(self._raw_array(b"a"))

    def _far_array(self, depth: int) -> Any:
        return self.make_array(self._raw_array(b"A"))

    def _sparse(self, depth: int) -> Any:
        shape, coalesced = self.read(depth), self.read(depth)
        indices = self._raw_array(self.take(1))
        values = self._raw_array(self.take(1))
        if not (isinstance(shape, tuple) and all(type(size) is int for size in shape) and type(coalesced) is bool):
            raise MalformedTree(f"invalid shape {shape!r} of a sparse array")
        return self.make_array(SparseArray(shape, indices, values, coalesced))

    def _extension(self, depth: int) -> Any:
        extension = Extension(self.text(), self.read(depth))
        return extension if self.make_extension is None else self.make_extension(extension)


_SIMPLE: dict[int, Any] = {ord("N"): None, ord("T"): True, ord("F"): False}
_READERS: dict[int, Callable[[Decoder, int], Any]] = {
    ord("i"): Decoder._int,
    ord("I"): Decoder._bigint,
    ord("f"): Decoder._float,
    ord("c"): Decoder._complex,
    ord("s"): Decoder._str,
    ord("b"): Decoder._bytes,
    ord("l"): Decoder._list,
    ord("t"): Decoder._tuple,
    ord("S"): Decoder._set,
    ord("Z"): Decoder._frozenset,
    ord("d"): Decoder._dict,
    ord("o"): Decoder._ordered,
    ord("C"): Decoder._counter,
    ord("g"): Decoder._scalar,
    ord("a"): Decoder._array,
    ord("A"): Decoder._far_array,
    ord("p"): Decoder._sparse,
    ord("x"): Decoder._extension,
}


def _default_array(array: AnyArray) -> Any:
    if isinstance(array, Array) and not array.is_tensor:
        return to_numpy(array)
    return array
