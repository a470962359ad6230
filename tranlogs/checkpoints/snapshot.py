"""Snapshots: copies of the state, which are taken on the training thread by one memcpy and written in the background."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ..base import lazy_numpy as np
from ..base.types import AnyArray, Array, Bytes, DeviceArray, SparseArray
from ..encoding import tree
from .folder import to_c_order


@dataclass(slots=True)
class Snapshot:
    """The state at one boundary. Until `SnapshotPool.hold`, its arrays are views of live memory or lie on a device.

    Attributes:
        tensors: tensors by name.
        meta: a tree of all other state.
        blob: `meta`, encoded.
        flat: the dense arrays of all tensors, by name; in C order after `SnapshotPool.hold` or `order`.
    """

    tensors: dict[str, AnyArray]
    meta: dict[str, Any]
    blob: bytes = b""
    flat: list[tuple[str, Array]] = field(default_factory=list)

    def encode(self, adapt: tree.Adapt | None) -> None:
        """Encode `meta`. Its large arrays become tensors `aux/...`."""
        large: list[AnyArray] = []
        self.blob = tree.encode(self.meta, path="", adapt=adapt, out_of_line=large)
        self.flat = []
        for name, content in [*self.tensors.items(), *((aux_name(i), array) for i, array in enumerate(large))]:
            if isinstance(content, SparseArray):
                self.flat += [(name + "#indices", content.indices), (name + "#values", content.values)]
            else:
                self.flat.append((name, content))

    def order(self) -> None:
        """Bring all arrays into C order, without a copy of those that are in C order.

        Use this instead of `SnapshotPool.hold` if the state does not change until the snapshot is written.
        """
        for i, (name, array) in enumerate(self.flat):
            if array.strides is not None:
                data = np.empty(array.nbytes, np.uint8)
                to_c_order(array, data)
                self.flat[i] = (name, replace(array, data=data))


def aux_name(index: int) -> str:
    """Return the name of the tensor that holds array `index` of the meta tree."""
    return f"aux/{index:06d}"


class SnapshotPool:
    """A buffer as large as the state, which all snapshots use: only the first one allocates memory."""

    def __init__(self) -> None:
        self._buffer: Bytes = np.empty(0, np.uint8)

    def reserve(self, nbytes: int) -> None:
        """Allocate and touch the memory for a state of about `nbytes`. The first touch takes much longer than a copy."""
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
        on_device: dict[Callable[[list[tuple[Any, Bytes]]], None], list[tuple[Any, Bytes]]] = {}
        for i, (name, array) in enumerate(snapshot.flat):
            data = self._buffer[at : at + array.nbytes]
            at += _aligned(array.nbytes)
            if isinstance(array, DeviceArray):
                on_device.setdefault(array.fetch, []).append((array.source, data))
                snapshot.flat[i] = (name, array.on_host(data))
            else:
                to_c_order(array, data)
                snapshot.flat[i] = (name, replace(array, data=data))
        for fetch, copies in on_device.items():
            fetch(copies)
        snapshot.tensors = {name: _without_data(content) for name, content in snapshot.tensors.items()}


def _aligned(nbytes: int) -> int:
    return (nbytes + 63) // 64 * 64


def _without_data(content: AnyArray) -> AnyArray:
    """Return the tensor without a reference to live memory. The writer needs only its kind."""
    if isinstance(content, SparseArray):
        return content
    return Array(content.dtype, (0,), np.empty(0, np.uint8))
