"""Format of a checkpoint's folder.

    step-0000000500-t001-1003/
        state.safetensors   every tensor: parameters, optimizer state, buffers, large auxiliary arrays
        meta.bin            a tree (encoding/tree.py): all other state, and references to tensors
        manifest.json       sizes and checksums of both files and of each tensor; position in the log; environment

A checkpoint is valid if and only if the checksums of the manifest, of each tensor, of the header of state.safetensors and of
meta.bin are right. state.safetensors is an ordinary safetensors file: any reader of that format opens it. Its tensors are in
C order; other strides are in the manifest. A tensor of which this process holds one piece has [kind, offset, global shape] in
the manifest under "piece". A complex tensor is stored as pairs of floats (a last dimension of 2), a sparse one as NAME#indices
and NAME#values.
"""

from __future__ import annotations

import json
from typing import Any

import xxhash

from ..base import lazy_numpy as np
from ..base.types import Array, Bytes

STATE, META, MANIFEST = "state.safetensors", "meta.bin", "manifest.json"
TEMPORARY = ".tmp-"

SAFETENSORS_DTYPE = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_COMPLEX = {"complex64": "F32", "complex128": "F64", "complex32": "F16"}


def safetensors_entry(dtype: str, shape: tuple[int, ...]) -> tuple[str, list[int]]:
    """Return dtype and shape of a tensor as they are written to the safetensors header."""
    if dtype in _COMPLEX:
        return _COMPLEX[dtype], [*shape, 2]
    return SAFETENSORS_DTYPE.get(dtype, "U8"), list(shape)


def to_c_order(array: Array, out: Bytes) -> None:
    """Write an array's bytes into `out` in C order."""
    if array.strides is None:
        np.copyto(out, array.data)
        return
    itemsize = array.nbytes // max(1, int(np.prod(array.shape)))
    items = array.data.view(f"V{itemsize}") if itemsize else array.data
    view = np.lib.stride_tricks.as_strided(items, array.shape, [s * itemsize for s in array.strides])
    np.copyto(out.view(f"V{itemsize}").reshape(array.shape), view)


def from_c_order(data: Bytes, shape: tuple[int, ...], strides: tuple[int, ...]) -> Bytes:
    """Return the bytes of a tensor in the order of its (dense) strides, from its bytes in C order."""
    out = np.empty(data.nbytes, np.uint8)
    if data.nbytes:
        itemsize = data.nbytes // int(np.prod(shape))
        view = np.lib.stride_tricks.as_strided(out.view(f"V{itemsize}"), shape, [s * itemsize for s in strides])
        np.copyto(view, data.view(f"V{itemsize}").reshape(shape))
    return out


def seal_manifest(manifest: dict[str, Any]) -> bytes:
    """Return the content of a manifest's file, with its checksum."""
    body = json.dumps(manifest, indent=1, sort_keys=True)
    outer = {"xxh3_64": xxhash.xxh3_64_hexdigest(body.encode()), "manifest": manifest}
    return json.dumps(outer, indent=1, sort_keys=True).encode()


def open_manifest(raw: bytes) -> dict[str, Any]:
    """Parse the content of a manifest's file.

    Raises:
        ValueError: the manifest is damaged.
    """
    outer = json.loads(raw)
    if not isinstance(outer, dict) or not isinstance(outer.get("manifest"), dict):
        raise ValueError("it is not a manifest")
    body = json.dumps(outer["manifest"], indent=1, sort_keys=True)
    if outer.get("xxh3_64") != xxhash.xxh3_64_hexdigest(body.encode()):
        raise ValueError("its checksum differs")
    manifest: dict[str, Any] = outer["manifest"]
    return manifest
