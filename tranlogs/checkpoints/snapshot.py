"""Snapshot: a copy of the state, taken on the training thread at one memcpy, written out behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..base.types import AnyArray, Array, Bytes, DeviceArray, SparseArray
from ..encoding import tree
from .folder import to_c_order


@dataclass(slots=True)
class Snapshot:
    """Tensors by name and a tree of everything else.

    Before `SnapshotPool.hold` its arrays are views of live memory, or on a device (`DeviceArray`).
    """

    tensors: dict[str, AnyArray]
    meta: dict[str, Any]
    blob: bytes = b""  # `meta`, encoded
    flat: list[tuple[str, Array]] = field(default_factory=list)  # every dense part, in C order once held

    def encode(self, adapt: tree.Adapt | None) -> None:
        """Encode the meta; its large arrays become tensors `aux/...`."""
        far: list[tuple[str, AnyArray]] = []
        self.blob = tree.encode(self.meta, path="", adapt=adapt, out_of_line=far)
        self.flat = []
        for name, content in [*self.tensors.items(), *((aux_name(i), array) for i, (_, array) in enumerate(far))]:
            if isinstance(content, SparseArray):
                self.flat += [(name + "#indices", content.indices), (name + "#values", content.values)]
            else:
                self.flat.append((name, content))

    def order(self) -> None:
        """Bring all arrays into C order. Those that are so already stay views of live memory, which must not change then.

        It takes the place of `SnapshotPool.hold` where nothing else runs until the snapshot is written.
        """
        for i, (name, array) in enumerate(self.flat):
            if array.strides is not None:
                data = np.empty(array.nbytes, np.uint8)
                to_c_order(array, data)
                self.flat[i] = (name, replace(array, data=data))


def aux_name(index: int) -> str:
    """Name of the tensor that holds array `index` of the meta tree."""
    return f"aux/{index:06d}"


class SnapshotPool:
    """One reused buffer as large as the state: a snapshot costs a memcpy and, after the first, no new memory."""

    def __init__(self) -> None:
        self._buffer: Bytes = np.empty(0, np.uint8)

    def reserve(self, nbytes: int) -> None:
        """Get the memory for a state of about `nbytes` now: its first touch costs many times the copy."""
        if self._buffer.nbytes < nbytes:
            buffer = np.empty(nbytes, np.uint8)
            buffer[::4096] = 0
            self._buffer = buffer

    def hold(self, snapshot: Snapshot) -> None:
        """Copy the snapshot's arrays into the pool, in C order."""
        total = sum(_aligned(array.nbytes) for _, array in snapshot.flat)
        if self._buffer.nbytes < total:
            self._buffer = np.empty(total, np.uint8)
        at = 0
        far: dict[Callable[[list[tuple[Any, Bytes]]], None], list[tuple[Any, Bytes]]] = {}
        for i, (name, array) in enumerate(snapshot.flat):
            data = self._buffer[at : at + array.nbytes]
            at += _aligned(array.nbytes)
            if isinstance(array, DeviceArray):
                far.setdefault(array.fetch, []).append((array.source, data))
                snapshot.flat[i] = (name, array.on_host(data))
            else:
                to_c_order(array, data)
                snapshot.flat[i] = (name, replace(array, data=data))
        for fetch, wanted in far.items():
            fetch(wanted)
        snapshot.tensors = {name: _without_data(content) for name, content in snapshot.tensors.items()}


def _aligned(nbytes: int) -> int:
    return (nbytes + 63) // 64 * 64


def _without_data(content: AnyArray) -> AnyArray:
    """Only the kind matters from here on; live memory must not be looked at any more."""
    if isinstance(content, SparseArray):
        return content
    return Array(content.dtype, (0,), np.empty(0, np.uint8))
