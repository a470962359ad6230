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
        32     1  kind (RecordKind)
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

import bisect
import itertools
import operator
import struct
from array import array
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple, overload

import xxhash

from ..base.config import META_BYTES_MAX
from ..base.types import Bytes

MAGIC = b"TLR2"
HEAD = struct.Struct("<4sIQQQBBHIQQQ")
ALIGNMENT = 64  # of records in their file
PLACE_BITS = 40  # of an offset in a place
COVERED_MAX = 0xFFFF  # steps that one boundary can cover
FIXED = struct.Struct("<QQQ8I")
assert HEAD.size == ALIGNMENT


class RecordKind(IntEnum):
    """Kind of a record. The numbers are part of the format."""

    SEGMENT = 1  # first record of a segment: run, rank, timeline, ordinal
    STEP = 2  # redo record of one optimizer update; the unit goes on
    IMAGE = 3  # after-image of state that was changed outside of a step
    BOUNDARY = 4  # commits all records since the last boundary; holds the auxiliary state
    UNIT = 5  # redo record of the last optimizer update of a unit, and the boundary that ends the unit

    @property
    def is_step(self) -> bool:
        """True if the record redoes an optimizer update."""
        return self is RecordKind.STEP or self is RecordKind.UNIT

    @property
    def is_boundary(self) -> bool:
        """True if the record ends a unit."""
        return self is RecordKind.UNIT or self is RecordKind.BOUNDARY


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
        digest: of the packed head; the next record has it as its chain. 0 before the head is packed.
    """

    segment_id: int
    sequence: int
    step: int
    kind: RecordKind
    version: int
    covered: int
    description_bytes: int
    payload_bytes: int
    description_sum: int
    chain: int
    digest: int = 0

    def can_follow(self, step: int) -> bool:
        """Return True if the record can follow one of `step`. Only a redo record or a boundary that covers steps counts on."""
        kind = self.kind
        if self.covered:
            return kind is RecordKind.BOUNDARY and self.step == step + self.covered
        return self.step == step + (kind is RecordKind.UNIT or kind is RecordKind.STEP)


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


def pack_head(head: Head) -> bytes:
    """Return the 64 bytes of a head."""
    fields = head[:-1]
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
    known = _KINDS.get(kind, RecordKind.SEGMENT)
    identity = segment_id, sequence, step, known, version, covered
    fields = *identity, length, payload, total, chain, xxhash.xxh3_64_intdigest(raw)
    return tuple.__new__(Head, fields)  # a scan makes a hundred thousand, and Head(...) takes twice the time


_KINDS = {int(kind): kind for kind in RecordKind}

_HEAD_BYTES = struct.Struct(f"{HEAD.size}s")
_TAKEN = bytes(kind in (RecordKind.STEP, RecordKind.UNIT) for kind in range(256))  # by kind: steps that a record takes


class Records(Sequence[Location]):
    """Records of one segment, in the order of the file.

    A run has hundreds of thousands. Their heads stay bytes, and are decoded when a record is asked for.

    Args:
        extents: of each part of the file that holds records without a gap the offset, and the heads of its records.
    """

    def __init__(self, extents: Sequence[tuple[int, bytes]]) -> None:
        self._extents, self._heads = extents, b"".join([heads for _, heads in extents])
        self._firsts = list(itertools.accumulate((len(heads) // HEAD.size for _, heads in extents), initial=0))

    def __len__(self) -> int:
        return self._firsts[-1]

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
        for i in range(bisect.bisect_right(self._firsts, start) - 1, len(self._extents)):
            first, (offset, heads) = self._firsts[i], self._extents[i]
            if first >= stop:
                return
            at = max(start - first, 0) * HEAD.size
            offset += sum(_list_sizes(heads[:at]))
            heads = heads[at : (stop - first) * HEAD.size]
            for own, (_, _, id_, sequence, step, kind, *rest) in zip(_digests(heads), HEAD.iter_unpack(heads), strict=True):
                fields = id_, sequence, step, _KINDS.get(kind, RecordKind.SEGMENT), *rest, own
                yield tuple.__new__(Location, (tuple.__new__(Head, fields), offset))
                offset = extent_end(offset, rest[3], rest[2])

    def extended(self, more: Sequence[Location]) -> Records:
        """Return these records and further ones."""
        return Records([*self._extents, *((one.offset, pack_head(one.head)) for one in more)])

    @property
    def versions(self) -> set[int]:
        """The format versions of the records."""
        return set(self._heads[33 :: HEAD.size])

    def find_covered(self, start: int, end: int) -> int:
        """Return the index of the first record, of those from `start` up to `end`, that covers steps; `end` if none does."""
        columns = (self._heads[start * HEAD.size + at : end * HEAD.size : HEAD.size] for at in (34, 35))
        return start + min(len(column) - len(column.lstrip(b"\0")) for column in columns)

    def is_sound(self, segment_id: int) -> bool:
        """Return True if the records are a chain that follows from the start of the file of a segment without gaps."""
        if not self.is_chained:
            return False
        sizes = _list_sizes(self._heads)
        lengths = (sum(sizes[first:end]) for first, end in itertools.pairwise(self._firsts))
        *starts, end = itertools.accumulate(lengths, initial=0)
        if starts != [at for at, _ in self._extents] or end >> PLACE_BITS:
            return False
        last = unpack_head(self._heads, len(self._heads) - HEAD.size)  # The next head names the digest of each head but this.
        return last is not None and last.segment_id == segment_id

    @cached_property
    def is_chained(self) -> bool:
        """True if each record can follow the one before. The first one describes the segment, and is outside the chain."""
        if self._heads[32 :: HEAD.size].rfind(RecordKind.SEGMENT) != 0:
            return False
        heads = self._heads[HEAD.size :]  # The columns below are words of 8 bytes or 2 bytes of each head.
        words, kinds, covered = array("Q", heads), heads[32 :: HEAD.size], array("H", heads)[17::32]
        ids, sequences, steps, chains = words[1::8], words[2::8], words[3::8], words[7::8]
        if any(covered) and any(n and kind != RecordKind.BOUNDARY for kind, n in zip(kinds, covered, strict=True)):
            return False
        taken = map(operator.add, kinds[1:].translate(_TAKEN), covered[1:])
        try:
            return (
                array("Q", self._heads[8:16]) * len(ids) == ids
                and sequences == array("Q", itertools.islice(itertools.count(*sequences[:1]), len(ids)))
                and steps == array("Q", itertools.accumulate(itertools.chain(steps[:1], taken)))
                and chains[1:] == array("Q", _digests(heads[: -HEAD.size]))
            )
        except OverflowError:  # of a damaged step or sequence number
            return False


def _list_sizes(heads: bytes) -> list[int]:
    """Return the bytes that each record takes in its file."""
    lengths = map(operator.add, array("Q", heads)[5::8], array("I", heads)[9::16])  # of payload and description
    return [(length + HEAD.size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT for length in lengths]


def _digests(heads: bytes) -> Iterator[int]:
    return itertools.starmap(xxhash.xxh3_64_intdigest, _HEAD_BYTES.iter_unpack(heads))


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
