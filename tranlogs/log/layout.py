"""Layouts and payloads: the descriptions of the tensors in a record, and the bytes of these tensors.

A *layout* is a list of tensor descriptions that the payloads of many records share. It is stored once per segment, and records
refer to the record that defines it. A *payload* is the bytes of one record: the tensors of its layout one after another,
without gaps, each in storage order. A tensor that is absent from a record ("no gradient") takes no bytes. A sparse tensor takes
the bytes of its indices and values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from ..base.types import ITEMSIZE, AnyArray, Array, Bytes, Piece, SparseArray, TensorSpec, is_dense
from ..encoding import tree

_INDEX_BYTES = 8  # indices of sparse tensors are int64
PIECE_BYTES_MAX = 1 << 20  # Each piece of a payload has its own checksum and is compressed separately.
SEPARATE_PIECE_BYTES_MIN = 1 << 18  # A tensor of this size or more does not share a piece with another tensor.


class SparseForm(NamedTuple):
    """Form of a sparse COO tensor in a payload: int64 indices [dims, nnz], then the values [nnz, *shape[dims:]]."""

    dims: int
    nnz: int
    is_coalesced: bool


class Layout:
    """An immutable list of tensor descriptions. Two layouts with equal descriptions are equal.

    Attributes:
        tensors: the descriptions, in the order of the tensors' bytes.
        sizes: bytes of each tensor, if it is present and dense.
        nbytes: bytes of all tensors, if all are present and dense.
    """

    __slots__ = ("_hash", "_index", "_pieces", "_starts", "names", "nbytes", "sizes", "tensors")

    def __init__(self, tensors: Iterable[TensorSpec]) -> None:
        self.tensors = tuple(tensors)
        self.names = [spec.name for spec in self.tensors]
        self.sizes = [spec.nbytes for spec in self.tensors]
        self.nbytes = sum(self.sizes)
        self._hash = hash(self.tensors)
        self._pieces: list[int] | None = None  # ends of the pieces, if all tensors are present and dense
        self._starts: list[int] | None = None
        self._index: dict[str, list[int]] | None = None

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Layout) and self._hash == other._hash and self.tensors == other.tensors)

    def __hash__(self) -> int:
        return self._hash

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def starts(self) -> list[int]:
        """Offset of each tensor in the payload, if all are present and dense."""
        if self._starts is None:
            self._starts = list(itertools.accumulate(self.sizes, initial=0))[:-1]
        return self._starts

    @property
    def index(self) -> dict[str, list[int]]:
        """Indices of the descriptions with each name. A tensor of which several ranges were logged has several."""
        if self._index is None:
            self._index = {}
            for i, name in enumerate(self.names):
                self._index.setdefault(name, []).append(i)
        return self._index

    def sizes_in(self, absent: Collection[int], sparse: Mapping[int, SparseForm]) -> list[int]:
        """Return the bytes that each tensor takes in a record."""
        if not absent and not sparse:
            return self.sizes
        sizes = list(self.sizes)
        for i in absent:
            sizes[i] = 0
        for i, form in sparse.items():
            sizes[i] = sum(self.sparse_sizes(i, form))
        return sizes

    def pieces(self, absent: Collection[int], sparse: Mapping[int, SparseForm]) -> list[int]:
        """Return the offset of the end of each piece of a payload, in bytes before compression.

        The rule is part of the format: a piece has at most 1 MiB, and a tensor of 256 KiB or more starts a new piece and ends
        its last one.
        """
        if absent or sparse:
            return cut_pieces(self.sizes_in(absent, sparse))
        if self._pieces is None:
            self._pieces = cut_pieces(self.sizes)
        return self._pieces

    def sparse_sizes(self, index: int, form: SparseForm) -> tuple[int, int]:
        """Return the bytes of the indices and of the values of a tensor that is sparse in one record."""
        spec = self.tensors[index]
        row = math.prod(spec.shape[form.dims :]) * ITEMSIZE[spec.dtype]
        return form.dims * form.nnz * _INDEX_BYTES, form.nnz * row


@dataclass(slots=True)
class Payload:
    """The tensors of one record and the memory that holds them.

    Attributes:
        buffers: flat uint8 arrays. Concatenated, they are the bytes of the present tensors in the order of the layout. A buffer
            need not begin or end with a tensor.
        absent: indices in the layout of the tensors that this record does not hold.
        sparse: form of each tensor that is sparse in this record, by index in the layout.
        wait: function that returns once `buffers` hold the bytes (transfers from a device); None if they hold them already.
        release: function that is called, in any thread, when `buffers` are no longer needed.
    """

    layout: Layout
    buffers: Sequence[Bytes]
    absent: frozenset[int] = frozenset()
    sparse: Mapping[int, SparseForm] = field(default_factory=dict)
    wait: Callable[[], object] | None = None
    release: Callable[[], None] | None = None
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = sum(map(_nbytes_of, self.buffers))

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, AnyArray | None]]) -> Payload:
        """Return a payload of arrays by name, as views of their memory; None stands for an absent tensor.

        Code that runs in every step should make its layout once instead.
        """
        specs: list[TensorSpec] = []
        buffers: list[Bytes] = []
        absent: set[int] = set()
        sparse: dict[int, SparseForm] = {}
        for i, (name, content) in enumerate(tensors):
            if content is None:
                absent.add(i)
                specs.append(TensorSpec(name, "uint8", (0,)))
            elif isinstance(content, SparseArray):
                sparse[i] = SparseForm(content.indices.shape[0], content.values.shape[0], content.is_coalesced)
                specs.append(TensorSpec(name, content.dtype, tuple(content.shape)))
                buffers += [content.indices.data, content.values.data]
            else:
                specs.append(spec_of(name, content))
                buffers.append(content.data)
        return cls(Layout(specs), [buffer for buffer in buffers if buffer.nbytes], frozenset(absent), sparse)


_nbytes_of = attrgetter("nbytes")

NO_TENSORS = Payload(Layout(()), ())


def cut_pieces(sizes: Iterable[int]) -> list[int]:
    """Return the offset of the end of each piece for tensors of these sizes; `Layout.pieces` has the rule."""
    ends: list[int] = []
    start = end = 0
    for size in sizes:
        if size >= SEPARATE_PIECE_BYTES_MIN and end > start:
            ends.append(end)
            start = end
        end += size
        while end - start > PIECE_BYTES_MAX:
            start += PIECE_BYTES_MAX
            ends.append(start)
        if size >= SEPARATE_PIECE_BYTES_MIN and end > start:
            ends.append(end)
            start = end
    if end > start:
        ends.append(end)
    return ends


def pack_layout(layout: Layout) -> bytes:
    """Encode a layout for the record that defines it."""
    return tree.encode([_packed(spec) for spec in layout.tensors])


def _packed(spec: TensorSpec) -> tuple[object, ...]:
    piece = None if spec.piece is None else (spec.piece.kind, spec.piece.offset, spec.piece.length)
    return spec.name, spec.dtype, spec.shape, spec.strides, piece


def unpack_layout(data: bytes) -> Layout:
    """Decode the layout that a record defines.

    Raises:
        MalformedTree: the bytes are not an encoded layout.
    """
    packed = tree.decode(data)
    if not isinstance(packed, list):
        raise tree.MalformedTree(f"a layout is a list, got {type(packed).__name__}")
    return Layout(map(_unpacked, packed))


def _unpacked(packed: Any) -> TensorSpec:
    try:
        name, dtype, shape, strides, piece = packed
        made = None if piece is None else Piece(piece[0], _sizes(piece[1]), _sizes(piece[2]))
        if dtype not in ITEMSIZE or not isinstance(name, str):
            raise ValueError(f"unknown dtype {dtype!r}")
        spec = TensorSpec(name, dtype, _sizes(shape), None if strides is None else _sizes(strides), made)
        laid_out = made.length if made is not None and made.kind == "box" else spec.shape
        if spec.strides is not None and not is_dense(laid_out, spec.strides):
            raise ValueError(f"strides {strides} do not fit to shape {laid_out}")
        if spec.nbytes > 1 << 48:
            raise ValueError(f"shape {shape} is too large")
        return spec
    except (ValueError, TypeError, IndexError) as error:
        raise tree.MalformedTree(f"damaged description of a tensor: {error}") from None


def _sizes(packed: Any) -> tuple[int, ...]:
    if not all(type(size) is int and size >= 0 for size in packed):
        raise ValueError(f"sizes must be integers >= 0, got {packed!r}")
    return tuple(packed)


def spec_of(name: str, array: Array) -> TensorSpec:
    """Return the description of an array with the given name."""
    return TensorSpec(name, array.dtype, array.shape if array.whole is None else array.whole, array.strides, array.piece)


def array_of(spec: TensorSpec, data: Bytes) -> Array:
    """Return the array with a description and bytes; the inverse of `spec_of`."""
    piece = spec.piece
    is_flat = piece is not None and piece.kind == "flat"
    array = Array(spec.dtype, spec.local_shape, data, None if is_flat else spec.strides)
    if piece is not None:
        array.piece, array.whole = piece, spec.shape
    return array
