"""Data types that all layers use: dtypes, descriptions of tensors, and arrays that need no framework.

An `Array` holds the bytes of a tensor *in storage order*, with the dtype, shape and strides. The core does not import a
framework; integrations convert their tensors to arrays and back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from . import lazy_numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
else:
    Bytes = Any

# Bytes of one element, by the dtype's name in torch and numpy.
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

    For a box, `offset` and `length` have one number for each dimension; for a flat range, one number.
    """

    kind: Literal["box", "flat"]
    offset: tuple[int, ...]
    length: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Description of a tensor, or of one piece of a tensor.

    `shape` is that of the whole tensor. `strides` (in elements) are those of the piece; None if the piece is C-contiguous.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    piece: Piece | None = None

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of the piece, or of the whole tensor if there is no piece."""
        return self.shape if self.piece is None else self.piece.length

    @property
    def nbytes(self) -> int:
        """Bytes of the piece, or of the whole tensor, if it is dense."""
        return math.prod(self.local_shape) * ITEMSIZE[self.dtype]


@dataclass(slots=True, eq=False)
class Array:
    """A dense array. `data` is a flat uint8 view of its memory in storage order (C order if `strides` is None).

    If the array is one piece of a tensor, `shape` is the shape of the piece and `whole` the shape of the tensor.
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
        assert (self.whole is None) == (self.piece is None), "`whole` and `piece` must be given together"
        assert self.piece is None or self.piece.length == self.shape, f"shape {self.shape} of {self.piece}"

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)


@dataclass(slots=True, eq=False)
class DeviceArray(Array):
    """An array whose bytes are on a device. `data` is empty.

    Attributes:
        fetch: function that copies the bytes of several sources to host memory, each in C order, and waits until it is done.
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
    """A sparse COO tensor: indices [sparse_dim, nnz] (int64), values [nnz, ...], in the order of the framework's tensor."""

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
    """A plain value of a framework's own type (a torch.Size, a dtype, a device), as a tag and an encodable value."""

    tag: str
    value: Any = field(default=None)


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return True if strides (in elements) leave no gaps: they are those of C order with permuted dimensions.

    Strides from a file must be checked with this function before an array with these strides is made.
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
    """Return a numpy array as an `Array`. It is a view if the numpy array is C-contiguous, and a copy otherwise."""
    contiguous = np.ascontiguousarray(values).reshape(values.shape)
    return Array(values.dtype.name, values.shape, contiguous.reshape(-1).view(np.uint8), is_tensor=False)
