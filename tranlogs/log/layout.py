"""Layouts and payloads: which tensors a record holds, and their bytes.

A *layout* is the list of tensors that the payloads of many records share. It is stored once per segment, and records refer
to the one that defines it. A *payload* is the bytes of one record: the tensors of its layout one after another, without
gaps, each in storage order. Tensors that are absent from a record ("no gradient") take no bytes; sparse ones take as many as
they need.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..base.types import ITEMSIZE, AnyArray, Array, Bytes, Piece, SparseArray, TensorSpec, is_dense
from ..encoding import tree

_INDEX_BYTES = 8  # indices of sparse tensors are int64
PIECE_BYTES_MAX = 1 << 20  # a piece of a payload is checked, and compressed, by itself
PIECE_OF_ITS_OWN = 1 << 18  # a tensor of this size or more shares no piece with another one


class SparseForm(NamedTuple):
    """How a sparse COO tensor lies in a payload: int64 indices [dims, nnz], then the values [nnz, *shape[dims:]]."""

    dims: int
    nnz: int
    is_coalesced: bool


class Layout:
    """An immutable list of tensors. Two layouts with the same tensors are equal.

    Attributes:
        tensors: in the order of their bytes.
        names: of the tensors.
        nbytes: of all tensors, if all are present and dense.
    """

    __slots__ = ("_hash", "_index", "_pieces", "_starts", "names", "nbytes", "sizes", "tensors")

    def __init__(self, tensors: Iterable[TensorSpec]) -> None:
        self.tensors = tuple(tensors)
        self.names = [spec.name for spec in self.tensors]
        self.sizes = [spec.nbytes for spec in self.tensors]
        self.nbytes = sum(self.sizes)
        self._hash = hash(self.tensors)
        self._pieces: list[int] | None = None  # where they end, if all tensors are present and dense
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
        """Where each tensor starts, if all are present and dense."""
        if self._starts is None:
            self._starts = list(itertools.accumulate(self.sizes, initial=0))[:-1]
        return self._starts

    @property
    def index(self) -> dict[str, list[int]]:
        """The indices of each name: one, or one for each range of a tensor of which several were logged."""
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
        """Return where each piece of a payload ends, in bytes before compression.

        The rule is part of the format: a piece has at most 1 MiB, and a tensor of 256 KiB or more starts a piece and ends
        one.
        """
        if absent or sparse:
            return cut_pieces(self.sizes_in(absent, sparse))
        if self._pieces is None:
            self._pieces = cut_pieces(self.sizes)
        return self._pieces

    def sparse_sizes(self, index: int, form: SparseForm) -> tuple[int, int]:
        """Bytes of the indices and of the values of a tensor that is sparse in one record."""
        spec = self.tensors[index]
        row = math.prod(spec.shape[form.dims :]) * ITEMSIZE[spec.dtype]
        return form.dims * form.nnz * _INDEX_BYTES, form.nnz * row


@dataclass(slots=True)
class Payload:
    """The tensors of one record and the memory that holds them.

    Attributes:
        layout: the tensors that the record may hold.
        buffers: flat uint8 arrays. One after another they are the bytes of the present tensors in the order of the layout;
            where one ends and the next begins is up to whoever made them.
        absent: indices in the layout of tensors that this record does not have.
        sparse: by index in the layout, the form of tensors that are sparse in this record.
        wait: returns once `buffers` hold the bytes (transfers from a device); None if they do already.
        release: called, in any thread, when `buffers` are not needed any more.
    """

    layout: Layout
    buffers: Sequence[Bytes]
    absent: frozenset[int] = frozenset()
    sparse: Mapping[int, SparseForm] = field(default_factory=dict)
    wait: Callable[[], object] | None = None
    release: Callable[[], None] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the present tensors."""
        return sum(buffer.nbytes for buffer in self.buffers)

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, AnyArray | None]]) -> Payload:
        """Return a payload of arrays by name, as views of their memory; None stands for an absent tensor.

        Code that runs once a step makes its layout once instead.
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


NO_TENSORS = Payload(Layout(()), ())


def cut_pieces(sizes: Iterable[int]) -> list[int]:
    """Return where pieces end for tensors of these sizes; see `Layout.pieces`."""
    ends: list[int] = []
    start = end = 0
    for size in sizes:
        if size >= PIECE_OF_ITS_OWN and end > start:
            ends.append(end)
            start = end
        end += size
        while end - start > PIECE_BYTES_MAX:
            start += PIECE_BYTES_MAX
            ends.append(start)
        if size >= PIECE_OF_ITS_OWN and end > start:
            ends.append(end)
            start = end
    if end > start:
        ends.append(end)
    return ends


def pack_layout(layout: Layout) -> bytes:
    """Return the bytes of a layout in a record that defines it."""
    return tree.encode([_packed(spec) for spec in layout.tensors])


def _packed(spec: TensorSpec) -> tuple[object, ...]:
    piece = None if spec.piece is None else (spec.piece.kind, spec.piece.offset, spec.piece.length)
    return spec.name, spec.dtype, spec.shape, spec.strides, piece


def unpack_layout(data: bytes) -> Layout:
    """Return the layout that a record defines.

    Raises:
        MalformedTree: the bytes are no layout.
    """
    packed = tree.decode(data)
    if not isinstance(packed, list):
        raise tree.MalformedTree("a layout is a list")
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
            raise ValueError(f"strides {strides} for shape {laid_out}")
        if spec.nbytes > 1 << 48:
            raise ValueError(f"a tensor of shape {shape}")
        return spec
    except (ValueError, TypeError, IndexError) as error:
        raise tree.MalformedTree(f"a tensor description: {error}") from None


def _sizes(packed: Any) -> tuple[int, ...]:
    if not all(type(size) is int and size >= 0 for size in packed):
        raise ValueError(f"{packed!r} are no sizes")
    return tuple(packed)


def spec_of(name: str, array: Array) -> TensorSpec:
    """Return the description of an array under a name."""
    return TensorSpec(name, array.dtype, array.shape if array.whole is None else array.whole, array.strides, array.piece)


def array_of(spec: TensorSpec, data: Bytes) -> Array:
    """Return the array that a description and its bytes stand for: the inverse of `spec_of`."""
    piece = spec.piece
    is_flat = piece is not None and piece.kind == "flat"
    array = Array(spec.dtype, spec.local_shape, data, None if is_flat else spec.strides)
    if piece is not None:
        array.piece, array.whole = piece, spec.shape
    return array
