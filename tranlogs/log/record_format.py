"""The byte format of one record of the log. docs/format.md describes it for readers in other languages.

A record is one contiguous extent of a segment file that starts at a multiple of 64 bytes:

    head          64 bytes
    payload       bytes of tensors, in pieces; then the body's large arrays
    description   what the payload holds, the body, scalars
    padding       zeros up to the next multiple of 64

The head is written last. After the process is killed, a record that has a head is therefore complete. Little-endian:

    offset  size
         0     4  magic "TLR2"
         4     4  low 32 bits of xxh3_64 over these 64 bytes with this field zero
         8     8  segment id (random, new whenever a file is reused)
        16     8  sequence number of the record
        24     8  step: optimizer updates applied once this record is redone
        32     1  kind (EntryKind)
        33     1  format version
        34     2  steps that a BOUNDARY covers without tensors; zero in other kinds
        36     4  length of the description
        40     8  length of the payload
        48     8  xxh3_64 of the description
        56     8  chain: digest of the previous record, which is xxh3_64 of its 64 head bytes

A description starts with a fixed part, followed by sections in this order:

    u64  place of the record that defines the layout; 0 if it is this one, or if there is none
    u64  place of the record that has the same body of a step; 0 if this record has its own, or none
    u64  length of the tensors' bytes before compression
    u32  length of each section: layout, absent, sparse, sums, codecs, digests, scalars, body

    layout   if this record defines the layout: a tree, list of (name, dtype, shape, strides | None, piece | None)
    absent   bitmap over the layout's tensors, lowest bit first; empty if all are present
    sparse   a tree, {index: (dims, nnz, coalesced)}; empty if no tensor is sparse
    sums     u64 for each piece: xxh3_64 of its stored bytes
    codecs   u32 stored length for each piece, then u8 codec for each piece; empty if no piece is compressed
    digests  fingerprint of the state after the step
    scalars  a tree, {name: number}; empty if there are none
    body     a tree, {part: content}, see `record_body.py`; empty if nothing is left of it

A place is the offset of a record in the file, and in its high 24 bits the low ones of that record's digest: another record that
lies there, such as a copy that a disk wrote to a wrong place, is not taken for it.

A record is valid if and only if the checksums of its head and its description match. Each piece of the payload has its own
checksum, which is compared when the piece is read.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import xxhash

from ..base.config import FORMAT_VERSION, META_BYTES_MAX
from ..base.types import Bytes

MAGIC = b"TLR2"
HEAD = struct.Struct("<4sIQQQBBHIQQQ")
ALIGNMENT = 64  # of records in their file
PLACE_BITS = 40  # of an offset in a place
COVERED_MAX = 0xFFFF  # steps that one boundary can cover
FIXED = struct.Struct("<QQQ8I")
assert HEAD.size == ALIGNMENT


class EntryKind(IntEnum):
    """Kind of a record. The numbers are part of the format."""

    SEGMENT = 1  # first record of a segment: run, rank, timeline, ordinal
    STEP = 2  # redo record of one optimizer update; the unit goes on
    IMAGE = 3  # after-image of state that was changed outside of a step
    BOUNDARY = 4  # commits all records since the last boundary; holds the auxiliary state
    UNIT = 5  # redo record of the last optimizer update of a unit, and the boundary that ends the unit

    @property
    def is_step(self) -> bool:
        """True if the record redoes an optimizer update."""
        return self is EntryKind.STEP or self is EntryKind.UNIT

    @property
    def is_boundary(self) -> bool:
        """True if the record ends a unit."""
        return self is EntryKind.UNIT or self is EntryKind.BOUNDARY


class Position(NamedTuple):
    """A place in the log: after the record `sequence`, which is at `step`, has the digest `chain`, and is on `timeline`."""

    sequence: int = 0
    step: int = 0
    chain: int = 0
    timeline: int = 1


class Head(NamedTuple):
    """The decoded head of a record.

    Attributes:
        covered: the number of steps that a boundary covers without their tensors. They can only be computed again.
        digest: the chain value that the next record holds.
    """

    segment_id: int
    sequence: int
    step: int
    kind: EntryKind
    version: int
    covered: int
    description_bytes: int
    payload_bytes: int
    description_sum: int
    chain: int
    digest: int

    def can_follow(self, step: int) -> bool:
        """Return True if the record can follow one of `step`. Only a redo record or a boundary that covers steps counts on."""
        kind = self.kind
        if self.covered:
            return kind is EntryKind.BOUNDARY and self.step == step + self.covered
        return self.step == step + (kind is EntryKind.UNIT or kind is EntryKind.STEP)


class Location(NamedTuple):
    """The head of a record and the offset of the record in its file."""

    head: Head
    offset: int

    @property
    def payload_offset(self) -> int:
        """Offset of the payload in the file."""
        return self.offset + HEAD.size

    @property
    def description_offset(self) -> int:
        """Offset of the description in the file."""
        return self.offset + HEAD.size + self.head.payload_bytes

    @property
    def end(self) -> int:
        """Offset of the next record in the file."""
        return extent_end(self.offset, self.head.payload_bytes, self.head.description_bytes)


class Description(NamedTuple):
    """The fixed part and the sections of a record's description; the sections are still encoded."""

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
    """Return the offset of the record that follows a record at `offset`."""
    end = offset + HEAD.size + payload_bytes + description_bytes
    return (end + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def pack_head(
    segment_id: int,
    sequence: int,
    step: int,
    kind: EntryKind,
    payload_bytes: int,
    description: bytes,
    chain: int,
    covered: int = 0,
) -> bytes:
    """Return the 64 head bytes of a record."""
    assert len(description) <= META_BYTES_MAX, f"a description of {len(description)} bytes"
    assert not covered or kind is EntryKind.BOUNDARY, f"a record of kind {kind.name} covers no steps"
    total = xxhash.xxh3_64_intdigest(description)
    identity = segment_id, sequence, step, int(kind), FORMAT_VERSION, covered
    fields = *identity, len(description), payload_bytes, total, chain
    checksum = xxhash.xxh3_64_intdigest(HEAD.pack(MAGIC, 0, *fields)) & 0xFFFFFFFF
    return HEAD.pack(MAGIC, checksum, *fields)


def repack_head(head: Head) -> bytes:
    """Return the 64 bytes of a head that was decoded."""
    identity = head.segment_id, head.sequence, head.step, int(head.kind), head.version, head.covered
    fields = *identity, head.description_bytes, head.payload_bytes, head.description_sum, head.chain
    checksum = xxhash.xxh3_64_intdigest(HEAD.pack(MAGIC, 0, *fields)) & 0xFFFFFFFF
    return HEAD.pack(MAGIC, checksum, *fields)


def digest(head: bytes | memoryview) -> int:
    """Return a record's digest: xxh3_64 of its head. The next record holds it as its chain value."""
    return xxhash.xxh3_64_intdigest(head[: HEAD.size])


_MAGIC_ZERO = MAGIC + bytes(4)  # how a head begins without its checksum


def unpack_head(data: bytes | memoryview, at: int = 0) -> Head | None:
    """Return the head at offset `at` of `data`; None if there is no head, or if it is damaged."""
    raw = bytes(data[at : at + HEAD.size])
    if len(raw) < HEAD.size or not raw.startswith(MAGIC):
        return None
    _, checksum, segment_id, sequence, step, kind, version, covered, length, payload, total, chain = HEAD.unpack(raw)
    if checksum != xxhash.xxh3_64_intdigest(_MAGIC_ZERO + raw[8:]) & 0xFFFFFFFF or length > META_BYTES_MAX:
        return None
    known = _KINDS.get(kind, EntryKind.SEGMENT)
    identity = segment_id, sequence, step, known, version, covered
    fields = *identity, length, payload, total, chain, xxhash.xxh3_64_intdigest(raw)
    return tuple.__new__(Head, fields)  # a scan makes a hundred thousand, and Head(...) takes twice the time


_KINDS = {int(kind): kind for kind in EntryKind}

_FIELDS = np.dtype(
    [
        ("magic", "S4"),
        ("checksum", "<u4"),
        ("segment_id", "<u8"),
        ("sequence", "<u8"),
        ("step", "<u8"),
        ("kind", "u1"),
        ("version", "u1"),
        ("covered", "<u2"),
        ("description_bytes", "<u4"),
        ("payload_bytes", "<u8"),
        ("description_sum", "<u8"),
        ("chain", "<u8"),
    ]
)
_HEAD_BYTES = struct.Struct(f"{HEAD.size}s")
assert _FIELDS.itemsize == HEAD.size


class Records(Sequence[Location]):
    """Records of one segment, in the order of the file. A hundred thousand heads are kept as bytes and looked at as columns.

    Attributes:
        columns: the fields of all heads, by name.
    """

    def __init__(self, heads: bytes, offsets: npt.NDArray[np.int64]) -> None:
        self._heads, self._offsets = heads, offsets
        self.columns = np.frombuffer(heads, _FIELDS)

    @classmethod
    def join(cls, rows: Sequence[tuple[int, bytes]]) -> Records:
        """Return the records of several extents, each given by its offset and the heads of the records that lie in it."""
        heads = b"".join([row for _, row in rows])
        sizes = _extents(np.frombuffer(heads, _FIELDS))
        counts = [len(row) // HEAD.size for _, row in rows]
        before = np.cumsum(sizes) - sizes  # as if there were no gap between two extents
        firsts = np.cumsum([0, *counts])[:-1]
        starts = np.array([offset for offset, _ in rows], np.int64) - (before[firsts] if len(before) else 0)
        return cls(heads, before + np.repeat(starts, counts))

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, index: int) -> Location: ...

    @overload
    def __getitem__(self, index: slice) -> list[Location]: ...

    def __getitem__(self, index: int | slice) -> Location | list[Location]:
        if isinstance(index, slice):
            return list(self.iterate(*index.indices(len(self))[:2]))
        index += len(self) if index < 0 else 0
        if not 0 <= index < len(self):
            raise IndexError(index)
        return next(self.iterate(index, index + 1))

    def __iter__(self) -> Iterator[Location]:
        return self.iterate(0, len(self))

    def iterate(self, start: int, stop: int) -> Iterator[Location]:
        """Yield the records from one index up to another."""
        data = self._heads[start * HEAD.size : stop * HEAD.size]
        offsets, digests = self._offsets[start:stop].tolist(), _digests(data)
        for offset, own, (_, _, id_, sequence, step, kind, *rest) in zip(offsets, digests, HEAD.iter_unpack(data), strict=True):
            fields = id_, sequence, step, _KINDS.get(kind, EntryKind.SEGMENT), *rest, own
            yield tuple.__new__(Location, (tuple.__new__(Head, fields), offset))

    def extended(self, more: Sequence[Location]) -> Records:
        """Return these records and further ones."""
        heads = b"".join([self._heads, *(repack_head(one.head) for one in more)])
        return Records(heads, np.append(self._offsets, np.array([one.offset for one in more], np.int64)))

    def split(self, counts: Sequence[int], segment_ids: Sequence[int]) -> list[Records | None]:
        """Return the records of each of several segments, given how many of these records belong to it.

        Instead of records that are not sound, None is returned: those of a segment are a chain that follows from the start of
        its file without gaps. All segments are checked at once, because a check of columns costs little for each record.
        """
        found, offsets = self.columns, self._offsets
        sizes = np.array(counts, np.int64)
        ends = np.cumsum(sizes)
        firsts = ends - sizes
        is_first = np.zeros(len(self), bool)
        is_first[firsts[firsts < ends]] = True
        is_good = self._can_follow(is_first) & (found["segment_id"] == np.repeat(np.array(segment_ids, np.uint64), sizes))
        is_good[is_first] &= offsets[is_first] == 0
        is_good[1:] &= is_first[1:] | (offsets[1:] == (offsets + _extents(found))[:-1]) & (offsets[1:] > offsets[:-1])
        failures = np.concatenate([[0], np.cumsum(~is_good)])
        pieces: list[Records | None] = []
        for first, end, failed in zip(
            firsts.tolist(), ends.tolist(), (failures[ends] - failures[firsts]).tolist(), strict=True
        ):
            # The next head names the digest of each head but the last.
            if first == end or failed or unpack_head(self._heads, (end - 1) * HEAD.size) is None:
                pieces.append(None)
                continue
            piece = Records(self._heads[first * HEAD.size : end * HEAD.size], offsets[first:end])
            piece.is_chained = True
            pieces.append(piece)
        return pieces

    def is_sound(self, segment_id: int) -> bool:
        """Return True if the records are a chain that follows from the start of the file of a segment without gaps."""
        return self.split([len(self)], [segment_id])[0] is not None

    @cached_property
    def is_chained(self) -> bool:
        """True if each record but the first, which is outside the chain, can follow the one before."""
        return bool(self._can_follow(np.arange(len(self)) == 0).all())

    def _can_follow(self, is_first: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return for each record whether it can follow the one before. The first record of a segment has none before it."""
        found, kinds, covered = self.columns, self.columns["kind"], self.columns["covered"]
        taken = (covered + ((kinds == EntryKind.STEP) | (kinds == EntryKind.UNIT))).astype(np.uint64)
        digests = np.fromiter(_digests(self._heads), np.uint64, len(self))
        is_next = (
            (found["sequence"][1:] == found["sequence"][:-1] + np.uint64(1))
            & (found["step"][1:] == found["step"][:-1] + taken[1:])
            & (found["chain"][1:] == digests[:-1])
        )
        can_follow: npt.NDArray[np.bool_] = (kinds == EntryKind.SEGMENT) == is_first
        can_follow &= is_first | (covered == 0) | (kinds == EntryKind.BOUNDARY)
        can_follow[1:] &= is_first[1:] | is_first[:-1] | is_next
        return can_follow


def _digests(heads: bytes) -> Iterator[int]:
    return itertools.starmap(xxhash.xxh3_64_intdigest, _HEAD_BYTES.iter_unpack(heads))


def _extents(found: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the bytes that records take in their file."""
    nbytes = found["payload_bytes"].astype(np.int64) + found["description_bytes"] + (HEAD.size + ALIGNMENT - 1)
    return nbytes // ALIGNMENT * ALIGNMENT  # type: ignore[no-any-return]


def pack_place(offset: int, digest: int) -> int:
    """Return the place of a record, by which others of its segment refer to it."""
    assert offset >> PLACE_BITS == 0, f"a record at byte {offset} of a segment"
    return digest << PLACE_BITS & 0xFFFFFF0000000000 | offset


def offset_of(place: int) -> int:
    """Return the offset in a place."""
    return place & ((1 << PLACE_BITS) - 1)


def pack_description(description: Description) -> bytes:
    """Return the bytes of a description."""
    layout_at, body_at, raw_bytes, *sections = description
    return b"".join((FIXED.pack(layout_at, body_at, raw_bytes, *map(len, sections)), *sections))


def unpack_description(data: bytes) -> Description:
    """Return the parts of a description.

    Raises:
        ValueError: the lengths of the sections do not add up to the length of the description.
    """
    if len(data) < FIXED.size:
        raise ValueError(f"a description has at least {FIXED.size} bytes, got {len(data)}")
    layout_at, body_at, raw_bytes, layout, absent, sparse, sums, codecs, digests, scalars, body = FIXED.unpack_from(data)
    absent_at = FIXED.size + layout
    sparse_at = absent_at + absent
    sums_at = sparse_at + sparse
    codecs_at = sums_at + sums
    digests_at = codecs_at + codecs
    scalars_at = digests_at + digests
    parts_at = scalars_at + scalars
    end = parts_at + body
    if end != len(data):
        raise ValueError(f"its sections have {end - FIXED.size} bytes according to its header, got {len(data) - FIXED.size}")
    sections = (
        data[FIXED.size : absent_at],
        data[absent_at:sparse_at],
        data[sparse_at:sums_at],
        data[sums_at:codecs_at],
        data[codecs_at:digests_at],
        data[digests_at:scalars_at],
        data[scalars_at:parts_at],
        data[parts_at:],
    )
    return tuple.__new__(Description, (layout_at, body_at, raw_bytes, *sections))


def unpack_scalars(data: bytes) -> bytes:
    """Return the section `scalars` of a description.

    Raises:
        ValueError: the lengths of the sections exceed the length of the description.
    """
    if len(data) < FIXED.size:
        raise ValueError(f"a description has at least {FIXED.size} bytes, got {len(data)}")
    scalars, body = FIXED.unpack_from(data)[-2:]
    end = len(data) - body
    if end - scalars < FIXED.size:
        raise ValueError(f"its sections have more than {len(data)} bytes")
    return data[end - scalars : end]


def checksum_of(data: Bytes | bytes) -> int:
    """Return the checksum of stored bytes: xxh3_64."""
    # A view of an array is hashed in half the time that the array takes.
    return xxhash.xxh3_64_intdigest(data if type(data) is bytes else memoryview(data))  # type: ignore[arg-type]
