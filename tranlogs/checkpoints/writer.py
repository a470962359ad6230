"""Write a checkpoint's folder and publish it: temporary name, fsync, rename, fsync of the parent folder."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import xxhash

from ..base.atomic_files import sync_folder, write_all, write_file
from ..base.config import FORMAT_VERSION
from ..base.failpoints import hit
from ..base.types import SparseArray
from .folder import MANIFEST, META, STATE, TEMPORARY, safetensors_entry, seal_manifest
from .snapshot import Snapshot


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
