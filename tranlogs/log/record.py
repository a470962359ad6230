"""What one record of the log looks like in bytes. docs/format.md says the same for readers in other languages.

A record is one contiguous extent of a segment file that starts at a multiple of 64 bytes:

    head          64 bytes
    payload       bytes of tensors, in pieces; then the body's large arrays
    description   what the payload holds, the body, scalars
    padding       zeros up to the next multiple of 64

The head is written last, so a record whose head is there is complete as far as a killed process goes. Little-endian:

    offset  size
         0     4  magic "TLR2"
         4     4  low 32 bits of xxh3_64 over these 64 bytes with this field zero
         8     8  segment id (random, new whenever a file is reused)
        16     8  sequence number of the record
        24     8  step: optimizer updates applied once this record is redone
        32     1  kind (EntryKind)
        33     1  format version
        34     2  reserved, zero
        36     4  length of the description
        40     8  length of the payload
        48     8  xxh3_64 of the description
        56     8  chain: digest of the record before, which is xxh3_64 of its 64 head bytes

A description starts with a fixed part, followed by sections in this order:

    u64  offset in the file of the record that defines the layout; 0 for none
    u64  offset in the file of the record whose body this record shares; 0 if it has its own
    u64  length of the tensors' bytes before compression
    u32  length of each section: layout, absent, sparse, sums, codecs, digests, scalars, body

    layout   if this record defines it: a tree, list of (name, dtype, shape, strides | None, piece | None)
    absent   bitmap over the layout's tensors, lowest bit first; empty if all are present
    sparse   a tree, {index: (dims, nnz, coalesced)}; empty if none is
    sums     u64 for each piece: xxh3_64 of its stored bytes
    codecs   u32 stored length for each piece, then u8 codec for each piece; empty if all pieces are stored as they are
    digests  fingerprint of the state after the step
    scalars  a tree, {name: number}; empty if there are none
    body     a tree, {part: (offset, content, arrays)}, see `body.py`; empty if shared

A record is valid if and only if its head's and its description's checksums hold; each piece of the payload is checked by
its own sum when it is read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import xxhash

from ..base.config import FORMAT_VERSION, META_BYTES_MAX
from ..base.types import Bytes

MAGIC = b"TLR2"
HEAD = struct.Struct("<4sIQQQBBHIQQQ")
ALIGNMENT = 64  # of records in their file
FIXED = struct.Struct("<QQQ8I")
assert HEAD.size == ALIGNMENT


class EntryKind(IntEnum):
    """What a record says; the numbers are part of the format."""

    SEGMENT = 1  # first in a segment: run, rank, timeline, where the chain goes on
    STEP = 2  # the redo record of one optimizer update
    IMAGE = 3  # an after-image of state that something else than a step changed
    BOUNDARY = 4  # commits all since the last boundary; auxiliary state


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the log: after record `sequence`, at `step`, whose digest is `chain`, on `timeline`."""

    sequence: int = 0
    step: int = 0
    chain: int = 0
    timeline: int = 1


class Head(NamedTuple):
    """The decoded head of a record; `digest` is the chain value of the record after it."""

    segment_id: int
    sequence: int
    step: int
    kind: EntryKind
    version: int
    description_bytes: int
    payload_bytes: int
    description_sum: int
    chain: int
    digest: int


class Location(NamedTuple):
    """A record and where it starts in its file; `description` is there if it came from the index."""

    head: Head
    offset: int
    description: bytes | None = None

    @property
    def payload_offset(self) -> int:
        """Where the payload starts in the file."""
        return self.offset + HEAD.size

    @property
    def description_offset(self) -> int:
        """Where the description starts in the file."""
        return self.offset + HEAD.size + self.head.payload_bytes

    @property
    def end(self) -> int:
        """Where the next record starts."""
        return extent_end(self.offset, self.head.payload_bytes, self.head.description_bytes)


class Description(NamedTuple):
    """The parts of a record's description, still encoded; offsets as in the module's table."""

    layout_at: int
    body_at: int
    raw_bytes: int
    layout: bytes
    absent: bytes
    sparse: bytes
    sums: bytes
    codecs: bytes
    digests: bytes
    scalars: bytes
    body: bytes


def extent_end(offset: int, payload_bytes: int, description_bytes: int) -> int:
    """Return where the record after one at `offset` starts."""
    end = offset + HEAD.size + payload_bytes + description_bytes
    return (end + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def pack_head(
    segment_id: int, sequence: int, step: int, kind: EntryKind, payload_bytes: int, description: bytes, chain: int
) -> bytes:
    """Return the 64 head bytes of a record."""
    assert len(description) <= META_BYTES_MAX, f"a description of {len(description)} bytes"
    total = xxhash.xxh3_64_intdigest(description)
    fields = (segment_id, sequence, step, int(kind), FORMAT_VERSION, 0, len(description), payload_bytes, total, chain)
    checksum = xxhash.xxh3_64_intdigest(HEAD.pack(MAGIC, 0, *fields)) & 0xFFFFFFFF
    return HEAD.pack(MAGIC, checksum, *fields)


def digest(head: bytes | memoryview) -> int:
    """Return the chain value of the next record: xxh3_64 of this record's head, which holds all other checksums."""
    return xxhash.xxh3_64_intdigest(head[: HEAD.size])


_ZERO = bytes(4)


def unpack_head(data: bytes | memoryview, at: int = 0) -> Head | None:
    """Return the head at `at` of `data`; None if there is none or if it is damaged."""
    if data[at : at + 4] != MAGIC or len(data) - at < HEAD.size:
        return None
    raw = bytes(data[at : at + HEAD.size])
    _, checksum, segment_id, sequence, step, kind, version, _, length, payload, total, chain = HEAD.unpack(raw)
    if checksum != xxhash.xxh3_64_intdigest(raw[:4] + _ZERO + raw[8:]) & 0xFFFFFFFF or length > META_BYTES_MAX:
        return None
    known = _KINDS.get(kind, EntryKind.SEGMENT)
    return Head(segment_id, sequence, step, known, version, length, payload, total, chain, xxhash.xxh3_64_intdigest(raw))


_KINDS = {int(kind): kind for kind in EntryKind}


def pack_description(description: Description) -> bytes:
    """Return the bytes of a description."""
    layout_at, body_at, raw_bytes, *sections = description
    return b"".join((FIXED.pack(layout_at, body_at, raw_bytes, *map(len, sections)), *sections))


def unpack_description(data: bytes) -> Description:
    """Return the parts of a description.

    Raises:
        ValueError: the lengths do not fit.
    """
    if len(data) < FIXED.size:
        raise ValueError(f"{len(data)} bytes are no description")
    layout_at, body_at, raw_bytes, *lengths = FIXED.unpack_from(data)
    if FIXED.size + sum(lengths) != len(data):
        raise ValueError(f"its sections have {sum(lengths)} bytes, {len(data) - FIXED.size} are there")
    parts, at = [], FIXED.size
    for length in lengths:
        parts.append(data[at : at + length] if length else b"")
        at += length
    return Description(layout_at, body_at, raw_bytes, *parts)


def unpack_scalars(data: bytes) -> bytes:
    """Return the scalars' section of a description.

    Raises:
        ValueError: the lengths do not fit.
    """
    if len(data) < FIXED.size:
        raise ValueError(f"{len(data)} bytes are no description")
    scalars, body = FIXED.unpack_from(data)[-2:]
    end = len(data) - body
    if end - scalars < FIXED.size:
        raise ValueError(f"its sections have more than {len(data)} bytes")
    return data[end - scalars : end]


def checksum_of(data: Bytes | bytes) -> int:
    """Return the checksum by which stored bytes are known: xxh3_64."""
    return xxhash.xxh3_64_intdigest(memoryview(data))  # type: ignore[arg-type]
