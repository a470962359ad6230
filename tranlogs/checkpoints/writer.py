"""Snapshots of the state, and the checkpoints that are written from them.

A snapshot is a copy, taken on the training thread by one memcpy, and written in the background. A checkpoint's folder is
published by a temporary name, fsync, rename, and fsync of the parent folder.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import xxhash

from ..base import lazy_numpy as np
from ..base.atomic_files import sync_folder, write_all, write_file
from ..base.config import FORMAT_VERSION
from ..base.failpoints import hit
from ..base.types import AnyArray, Array, Bytes, DeviceArray, SparseArray
from ..encoding import tree
from .folder import MANIFEST, META, STATE, TEMPORARY, safetensors_entry, seal_manifest, to_c_order


@dataclass(slots=True)
class Snapshot:
    """The state at one boundary. Until `SnapshotPool.hold`, its arrays are views of live memory or lie on a device.

    Attributes:
        meta: a tree of all other state.
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


def checkpoint_name(step: int, timeline: int, sequence: int) -> str:
    """Return the name of a checkpoint's folder."""
    return f"step-{step:010d}-t{timeline:03d}-{sequence}"


def write_checkpoint(folder: Path, name: str, snapshot: Snapshot, about: dict[str, Any]) -> int:
    """Write and publish a checkpoint in the journal's folder `checkpoints`; return the number of bytes written.

    The snapshot must be encoded and in C order. `about` holds entries of the manifest: step, sequence, chain, timeline, run,
    environment.

    Raises:
        OSError: the disk is full or fails. Nothing is published then.
    """
    temporary, target = folder / (TEMPORARY + name), folder / name
    nbytes = write_folder(temporary, snapshot, about)
    try:
        hit("checkpoint.publish")
        os.rename(temporary, target)  # commit point
        sync_folder(folder)
        hit("checkpoint.published")
        return nbytes
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def write_folder(folder: Path, snapshot: Snapshot, about: dict[str, Any], *, is_synced: bool = True) -> int:
    """Write a checkpoint's folder, as `write_checkpoint` does, without publishing it; return the number of bytes written.

    `is_synced` is False for a folder that is of no use after a crash.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        hit("checkpoint.state")
        tensors, nbytes, header_sum = _write_state(folder / STATE, snapshot, is_synced=is_synced)
        hit("checkpoint.meta")
        write_file(folder / META, snapshot.blob, is_synced=is_synced)
        manifest = {
            **about,
            "format": FORMAT_VERSION,
            "tensors": tensors,
            "state": {"bytes": nbytes, "header_xxh3_64": header_sum},
            "meta": {"bytes": len(snapshot.blob), "xxh3_64": xxhash.xxh3_64_hexdigest(snapshot.blob)},
            "sparse": {
                name: {"shape": list(content.shape), "coalesced": content.is_coalesced}
                for name, content in snapshot.tensors.items()
                if isinstance(content, SparseArray)
            },
        }
        hit("checkpoint.manifest")
        write_file(folder / MANIFEST, seal_manifest(manifest), is_synced=is_synced)
        if is_synced:
            sync_folder(folder)
        return nbytes + len(snapshot.blob)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _write_state(path: Path, snapshot: Snapshot, *, is_synced: bool) -> tuple[dict[str, Any], int, str]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "written_by": "tranlogs"}}
    tensors: dict[str, Any] = {}
    at = 0
    for name, array in snapshot.flat:
        dtype, shape = safetensors_entry(array.dtype, array.shape)
        if dtype == "U8" and array.dtype != "uint8":  # safetensors lacks the dtype: store bytes
            shape = [array.nbytes]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + array.nbytes]}
        tensors[name] = {"dtype": array.dtype, "shape": list(array.shape), "offset": at, "bytes": array.nbytes}
        if array.strides is not None:
            tensors[name]["strides"] = list(array.strides)
        if not array.is_tensor:
            tensors[name]["numpy"] = True
        if array.piece is not None:
            tensors[name]["piece"] = [array.piece.kind, list(array.piece.offset), list(array.whole or ())]
        at += array.nbytes
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_all(fd, struct.pack("<Q", len(raw)) + raw)
        for name, array in snapshot.flat:
            tensors[name]["xxh3_64"] = xxhash.xxh3_64_hexdigest(array.data.data)
            write_all(fd, array.data.data)
        if is_synced:
            os.fsync(fd)
    finally:
        os.close(fd)
    return tensors, 8 + len(raw) + at, xxhash.xxh3_64_hexdigest(raw)
