"""The values that every layer passes around: dtypes, tensor descriptions, arrays without a framework.

An `Array` is a tensor's bytes *in storage order* with what is needed to make the tensor again. The core never
imports a framework; integrations turn their tensors into arrays and back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

# Names are torch's and numpy's; itemsize in bytes.
ITEMSIZE: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
    "complex32": 4,
}


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a tensor that one process holds: a box, or a range of the flattened elements.

    For a box, `offset` and `length` have one number a dimension; for a flat range one number each.
    """

    kind: Literal["box", "flat"]
    offset: tuple[int, ...]
    length: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, dtype and layout of a tensor, or of one piece of it. `shape` is global, `strides` (in elements) local.

    `strides` is None where the local tensor is C-contiguous.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    piece: Piece | None = None

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of what this process holds: the piece's, or the whole tensor's."""
        return self.shape if self.piece is None else self.piece.length

    @property
    def nbytes(self) -> int:
        """Bytes of the local tensor, dense."""
        return math.prod(self.local_shape) * ITEMSIZE[self.dtype]


@dataclass(slots=True, eq=False)
class Array:
    """Dense values: `data` is a flat uint8 view of the memory in storage order (C order if `strides` is None).

    An array may be one piece of a tensor: `shape` is then the piece's own, `whole` the shape of the tensor.
    """

    dtype: str
    shape: tuple[int, ...]
    data: Bytes
    strides: tuple[int, ...] | None = None
    is_tensor: bool = True  # a framework's tensor; False for a numpy array
    whole: tuple[int, ...] | None = None
    piece: Piece | None = None

    def __post_init__(self) -> None:
        expected = math.prod(self.shape) * ITEMSIZE[self.dtype]
        assert self.data.nbytes == expected, f"{self.data.nbytes} bytes for {self.dtype}{list(self.shape)}"
        assert (self.whole is None) == (self.piece is None), "a piece names the shape of the whole, and only a piece does"
        assert self.piece is None or self.piece.length == self.shape, f"a piece of {self.piece} with the shape {self.shape}"

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)


@dataclass(slots=True, eq=False)
class DeviceArray(Array):
    """An array whose bytes are on a device; `data` is empty.

    Attributes:
        source: the framework's tensor.
        fetch: copies the bytes of several sources into host memory, each in C order, and waits for them.
    """

    source: Any = field(kw_only=True)
    fetch: Callable[[list[tuple[Any, Bytes]]], None] = field(kw_only=True)

    def __post_init__(self) -> None:
        assert self.data.nbytes == 0, "the bytes are on a device"

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEMSIZE[self.dtype]

    def on_host(self, data: Bytes) -> Array:
        """Return the array with its bytes."""
        return Array(self.dtype, self.shape, data, self.strides, self.is_tensor, self.whole, self.piece)


@dataclass(slots=True, eq=False)
class SparseArray:
    """A sparse COO tensor: indices [sparse_dim, nnz] (int64), values [nnz, ...]; order and the flag are kept."""

    shape: tuple[int, ...]
    indices: Array
    values: Array
    is_coalesced: bool

    @property
    def dtype(self) -> str:
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        return self.indices.nbytes + self.values.nbytes


AnyArray = Array | SparseArray


@dataclass(frozen=True, slots=True)
class Extension:
    """A framework's own plain value (a torch.Size, a dtype, a device) as a tag and an encodable value."""

    tag: str
    value: Any = field(default=None)


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether strides (in elements) put the elements of `shape` side by side: C order with its dimensions permuted.

    Strides that came from a file must be so before memory is looked at through them.
    """
    if len(shape) != len(strides):
        return False
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1):
        if stride != expected and 0 not in shape:
            return False
        expected *= size
    return True


def dense(values: npt.NDArray[Any]) -> Array:
    """A numpy array as `Array` (a view where it is C-contiguous, else a copy)."""
    contiguous = np.ascontiguousarray(values).reshape(values.shape)
    return Array(values.dtype.name, values.shape, contiguous.reshape(-1).view(np.uint8), is_tensor=False)
