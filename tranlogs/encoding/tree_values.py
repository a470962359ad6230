"""The values that a tree holds besides plain ones, and the names that its encoder and decoder share."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.types import ITEMSIZE, Array

Adapt = Callable[[Any], Any]  # turns a framework's value into an Array, SparseArray or Extension; returns other values

I64, U32, F64, C128 = struct.Struct("<q"), struct.Struct("<I"), struct.Struct("<d"), struct.Struct("<dd")
NUMPY_DTYPES = frozenset(name for name in ITEMSIZE if name in np.sctypeDict)


class Fixed:
    """A value that does not change, at any place in a tree. It is encoded once, and its bytes are kept.

    Attributes:
        value: the value.
        encoded: the encoded value; None until it is encoded, and always None if some of its arrays are out of line.
    """

    __slots__ = ("encoded", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.encoded: bytes | None = None


class MalformedTree(ValueError):
    """Error of bytes that are not an encoded tree. The caller knows the file, and raises CorruptRecord instead."""


def to_numpy(array: Array) -> np.ndarray[Any, Any]:
    """Return an array as a numpy array in C order, which can be written to: it may become a part of the user's state again.

    The dtypes bfloat16 and float8 become unsigned integers of the same size.
    """
    name = array.dtype if array.dtype in NUMPY_DTYPES else f"uint{8 * ITEMSIZE[array.dtype]}"
    flat = array.data.reshape(-1).copy().view(np.dtype(name))
    if array.strides is None:
        return flat.reshape(array.shape)
    return np.lib.stride_tricks.as_strided(flat, array.shape, [s * flat.itemsize for s in array.strides]).copy()
