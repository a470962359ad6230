"""Layouts and payloads: which tensors a record holds, and their bytes.

A *layout* is the list of tensors that the payloads of many records share. It is stored once per segment, and records refer
to it by number. A *payload* is the bytes of one record: the tensors of its layout one after another, without gaps, each in
storage order. Tensors that are absent from a record ("no gradient") take no bytes; sparse ones take as many as they need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..types import ITEMSIZE, AnyArray, Array, Bytes, SparseArray, TensorSpec

_INDEX_BYTES = 8  # indices of sparse tensors are int64


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

    __slots__ = ("_hash", "names", "nbytes", "sizes", "tensors")

    def __init__(self, tensors: Iterable[TensorSpec]) -> None:
        self.tensors = tuple(tensors)
        self.names = [spec.name for spec in self.tensors]
        self.sizes = [spec.nbytes for spec in self.tensors]
        self.nbytes = sum(self.sizes)
        self._hash = hash(self.tensors)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Layout) and self._hash == other._hash and self.tensors == other.tensors)

    def __hash__(self) -> int:
        return self._hash

    def __len__(self) -> int:
        return len(self.tensors)

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
    wait: Callable[[], None] | None = None
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


def spec_of(name: str, array: Array) -> TensorSpec:
    """Return the description of an array under a name."""
    return TensorSpec(name, array.dtype, array.shape if array.whole is None else array.whole, array.strides, array.piece)


def contents_of(payload: Payload) -> Iterator[tuple[str, AnyArray | None]]:
    """Yield the tensors of a payload by name, as copies; None stands for an absent one."""
    if payload.wait is not None:
        payload.wait()
    data = np.concatenate(payload.buffers) if payload.buffers else np.empty(0, np.uint8)
    at = 0
    for i, spec in enumerate(payload.layout.tensors):
        if i in payload.absent:
            yield spec.name, None
            continue
        form = payload.sparse.get(i)
        if form is None:
            array = Array(spec.dtype, spec.local_shape, data[at : at + spec.nbytes], spec.strides)
            if spec.piece is not None:
                array.piece, array.whole = spec.piece, spec.shape
            yield spec.name, array
            at += spec.nbytes
            continue
        first, second = payload.layout.sparse_sizes(i, form)
        indices = Array("int64", (form.dims, form.nnz), data[at : at + first])
        values = Array(spec.dtype, (form.nnz, *spec.shape[form.dims :]), data[at + first : at + first + second])
        yield spec.name, SparseArray(spec.shape, indices, values, form.is_coalesced)
        at += first + second
    assert at == data.nbytes, f"the buffers hold {data.nbytes} bytes, the layout wants {at}"
    if payload.release is not None:
        payload.release()
