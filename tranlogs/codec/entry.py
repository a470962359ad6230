"""What one log entry looks like in bytes. docs/format.md says the same for readers in other languages.

An entry is one LMDB transaction: data values (tensor bytes, as stored) and, put last, one head value that describes
them. The head finds its data by page number, so nothing depends on LMDB's tree.

Head value, little-endian, zero-padded to at least 2,048 bytes so that LMDB gives it pages of its own:

    offset  size
         0     4  magic "TLE1"
         4     4  header checksum: low 32 bits of xxh3_64 over these 56 bytes with this field zero
         8     8  segment id (random, new whenever a file is reused)
        16     8  sequence number of the entry
        24     8  step: optimizer updates applied once this entry is redone
        32     1  kind (EntryKind)
        33     1  format version
        34     2  reserved, zero
        36     4  payload length in bytes
        40     8  xxh3_64 of the payload
        48     8  chain: digest of the entry before (see `digest`)
        56        payload: a tree (codec/tree.py), a dict of
                    "specs"   new tensor descriptions: list of (id, name, dtype, shape, strides | None, piece | None)
                    "frames"  bytes, FRAME structs: where each tensor lies
                    "named"   int: so many frames are tensors by name; the rest are arrays of the body, by index
                    "scalars" optional, a dict of floats: what the loop noted at this boundary
                    "body"    bytes: a tree, or with "key" a difference to the body of entry number "key" (codec/delta.py)

An entry is valid if and only if magic, version, header checksum, segment id and payload checksum agree; it counts if
its chain is the digest of the entry before. Each frame has its own checksum over its stored bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import xxhash

from ..config import FORMAT_VERSION, META_BYTES_MAX
from ..types import ITEMSIZE, Piece, TensorSpec, is_dense
from . import tree

MAGIC = b"TLE1"
HEAD = struct.Struct("<4sIQQQBBHIQQ")
HEAD_BYTES_MIN = 2048  # shorter values would sit inside LMDB's leaf pages
PAGE_HEADER = struct.Struct("<QHHI")  # LMDB 0.9: page number, pad, flags, run length
PAGE_HEADER_BYTES = PAGE_HEADER.size
OVERFLOW_FLAG = 0x04  # a page run of one value; exactly this: a dirty (uncommitted) run has 0x10 set, too


class EntryKind(IntEnum):
    """What an entry says; the numbers are part of the format."""

    SEGMENT = 1  # first in a segment: run, rank, timeline, where the chain goes on
    STEP = 2  # the redo record of one optimizer update
    IMAGE = 3  # an after-image of state that something else than a step changed
    BOUNDARY = 4  # commits all since the last boundary; auxiliary state


class Part(IntEnum):
    """Which part of a tensor a frame holds."""

    DENSE = 0
    INDICES = 1
    VALUES = 2
    NONE = 3  # there is no gradient


# spec u32, part u8, codec u8, flags u16, nnz u64, page u64, offset in the value u64, stored bytes u64, xxh3_64 of them u64
FRAME = struct.Struct("<IBBHQQQQQ")
assert FRAME.size == 48
assert HEAD.size == 56

COALESCED = 1 << 8  # in `flags`; the low byte is the number of sparse dimensions


@dataclass(frozen=True, slots=True)
class Head:
    """The decoded header of an entry."""

    segment_id: int
    sequence: int
    step: int
    kind: EntryKind
    length: int
    payload_sum: int
    chain: int
    digest: int
    version: int = FORMAT_VERSION


def pack_head(segment_id: int, sequence: int, step: int, kind: EntryKind, payload: bytes, chain: int) -> bytes:
    """The 56 header bytes of an entry."""
    assert len(payload) <= META_BYTES_MAX
    fields = (segment_id, sequence, step, int(kind), FORMAT_VERSION, 0, len(payload), xxhash.xxh3_64_intdigest(payload), chain)
    checksum = xxhash.xxh3_64_intdigest(HEAD.pack(MAGIC, 0, *fields)) & 0xFFFFFFFF
    return HEAD.pack(MAGIC, checksum, *fields)


def digest(head: bytes | memoryview) -> int:
    """The chain value of the next entry: xxh3_64 of this entry's 56 header bytes, which hold all other checksums."""
    return xxhash.xxh3_64_intdigest(head[: HEAD.size])


def unpack_head(data: bytes | memoryview) -> Head | None:
    """The header at the start of `data`; None where there is none or it is damaged."""
    if len(data) < HEAD.size or data[:4] != MAGIC:
        return None
    magic, checksum, segment_id, sequence, step, kind, version, reserved, length, total, chain = HEAD.unpack_from(data)
    zeroed = HEAD.pack(magic, 0, segment_id, sequence, step, kind, version, reserved, length, total, chain)
    if checksum != xxhash.xxh3_64_intdigest(zeroed) & 0xFFFFFFFF or length > META_BYTES_MAX:
        return None
    known = kind if kind in EntryKind._value2member_map_ else EntryKind.SEGMENT
    return Head(segment_id, sequence, step, EntryKind(known), length, total, chain, digest(data), version)


def pack_spec(number: int, spec: TensorSpec) -> tuple[Any, ...]:
    """A spec as it stands in an entry's payload."""
    piece = None if spec.piece is None else (spec.piece.kind, spec.piece.offset, spec.piece.length)
    return (number, spec.name, spec.dtype, spec.shape, spec.strides, piece)


def unpack_spec(packed: Any) -> tuple[int, TensorSpec]:
    """Number and spec of a packed spec.

    Raises:
        MalformedTree: it is none.
    """
    try:
        number, name, dtype, shape, strides, piece = packed
        made = None if piece is None else Piece(piece[0], _sizes(piece[1]), _sizes(piece[2]))
        if dtype not in ITEMSIZE or not isinstance(name, str):
            raise ValueError(f"unknown dtype {dtype!r}")
        spec = TensorSpec(name, dtype, _sizes(shape), None if strides is None else _sizes(strides), made)
        laid_out = made.length if made is not None and made.kind == "box" else spec.shape
        if spec.strides is not None and not is_dense(laid_out, spec.strides):
            raise ValueError(f"strides {strides} for shape {laid_out}")
        return int(number), spec
    except (ValueError, TypeError, IndexError) as error:
        raise tree.MalformedTree(f"a tensor description: {error}") from None


def _sizes(packed: Any) -> tuple[int, ...]:
    if not all(type(size) is int and size >= 0 for size in packed):
        raise ValueError(f"{packed!r} are no sizes")
    return tuple(packed)
