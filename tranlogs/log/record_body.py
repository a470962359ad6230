"""Descriptions and bodies of records. What does not change, a layout or a part of a body, is stored once in a segment.

The body of a boundary is a dict, and each of its values is a *part*. A `Fixed` below a part is a part, too: its name is that
of the part above, a slash, and its index there. The body of a step, of an after-image and of a segment's first record is one
part with the name "". A record that is a step and a boundary has both. Each large array of a part is a part, too: its name is
that of the part, a slash, a hash, and its index there. In a record, a body is a dict of parts:

    name: bytes    the part, encoded
    name: row      the array: offset in the file, stored bytes, xxh3_64 of them, codec
    name: place    of the record in the same file that has it there (see record_format.py)
    name: None     the boundary does not have the part, in contrast to the one at `0`
    0: place       of another boundary, with all its parts: those that are not named here are that one's, but the step's

A record at a place has there what it is referred to for, and does not refer on. Two arrays are equal if their length and their
128-bit hash are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import xxhash

from ..base.types import AnyArray, Array, Bytes
from ..encoding import tree
from ..encoding.compression import compress
from .layout import Layout, Payload, SparseForm, pack_layout
from .payload_writer import Record
from .record_format import HEAD, Description, RecordKind, pack_description

_IMMUTABLE = frozenset((bool, int, float, str, bytes))

WHOLE = ""  # the part that is the whole body
BASE = 0  # the key of the place of another boundary
_PLACES_MAX = 8  # in a body that refers to another boundary; a body with more becomes one with all its parts
_WHOLE_BODIES_MAX = 64  # Later records of a segment can refer to this number of different bodies of steps.

Row = list[int]  # as defined above
PackedBody = dict[Any, Any]  # as defined above
Digest = tuple[int, int]  # bytes of an array, and xxh3_128 of them
Scalars = dict[str, float]  # numbers that the loop logs for its curves, by name


class Part:
    """An encoded part of a body.

    Attributes:
        below: the values below it that are parts.
        nbytes: its size if all of it is stored.
    """

    __slots__ = ("arrays", "below", "blob", "nbytes")

    def __init__(self, blob: bytes, arrays: Sequence[Array] = (), below: Sequence[tree.Fixed] = ()) -> None:
        self.blob, self.arrays, self.below = blob, arrays, below
        self.nbytes = len(blob) + sum([array.nbytes for array in arrays]) if arrays else len(blob)


EncodedBody = dict[str, Part]


@dataclass(slots=True)
class EncodedContent:
    """What a record holds besides its tensors; each step makes one. A boundary covers `covered` steps without their tensors."""

    kind: RecordKind
    step: int
    body: EncodedBody
    digests: bytes = b""
    scalars: Scalars | None = None
    covered: int = 0


class BodyEncoder:
    """Encodes bodies part by part. What nobody can write to (`Fixed`, numbers, str, None) is encoded once and known again."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, Part]] = {}

    def whole(self, body: Any, adapt: tree.Adapt | None) -> EncodedBody:
        """Encode a body as one part."""
        known = self._known.get(WHOLE)
        return {WHOLE: known[1] if known is not None and known[0] is body else self._encode(WHOLE, body, adapt, None)}

    def parts(self, body: dict[str, Any], adapt: tree.Adapt | None) -> EncodedBody:
        """Encode a body whose values are parts."""
        found: EncodedBody = {}
        values = list(body.items())
        for name, value in values:  # The loop adds the parts below them.
            known = self._known.get(name)
            part = found[name] = known[1] if known is not None and known[0] is value else self._encode(name, value, adapt, [])
            for index, below in enumerate(part.below):
                values.append((f"{name}/{index}", below))
        assert len(found) == len(values), "the name of a part has a slash"
        return found

    def _encode(self, name: str, value: Any, adapt: tree.Adapt | None, below: list[tree.Fixed] | None) -> Part:
        is_fixed = type(value) is tree.Fixed
        arrays: list[AnyArray] = []
        content = value.value if is_fixed else value
        blob = tree.encode(content, path=name, adapt=adapt, out_of_line=arrays, parts=below, is_checked=True)
        part = Part(blob, [array for array in arrays if isinstance(array, Array)] if arrays else (), below or ())
        if is_fixed or value is None or type(value) in _IMMUTABLE:
            self._known[name] = value, part
        return part


def body_bytes(body: EncodedBody) -> int:
    """Return the size of a body if all of it is stored."""
    return sum(map(_nbytes_of, body.values()))


_nbytes_of = attrgetter("nbytes")


def decode_part(name: str, parts: Mapping[str, tuple[bytes, Sequence[Bytes]]], **make: Any) -> Any:
    """Decode a part of a body that is not in a file, with the parts below it.

    Raises:
        MalformedTree: the bytes are damaged.
    """
    blob, arrays = parts[name]

    def read_array(index: int, array: AnyArray) -> AnyArray:
        assert isinstance(array, Array), "an array out of line is dense"
        return Array(array.dtype, array.shape, arrays[index], array.strides, array.is_tensor)

    return tree.decode(
        blob,
        read_array,
        parts=lambda index: decode_part(f"{name}/{index}", parts, **make),
        **make,
    )


@dataclass(slots=True)
class _KnownArray:
    """An array as it last stood in the segment.

    Attributes:
        at: place of the record that has it; its offset until it is written.
    """

    digest: Digest
    row: Row
    at: int


@dataclass(slots=True)
class _Known:
    """A part as it last stood in the segment, and its arrays. `at` is as that of `_KnownArray`."""

    part: Part
    at: int
    arrays: list[_KnownArray]

    def pack(self, packed: PackedBody, name: str, record: int, base: _Known | None) -> None:
        """Add what the record at an offset has of the part and its arrays, apart from what the base has."""
        if base is None or base.at != self.at:
            packed[name] = self.part.blob if self.at == record else self.at
        known = base.arrays if base is not None else []
        if self.arrays or known:
            for i, array in enumerate(self.arrays):
                if i >= len(known) or known[i] is not array:
                    packed[f"{name}/#{i}"] = array.row if array.at == record else array.at
            for i in range(len(self.arrays), len(known)):
                packed[f"{name}/#{i}"] = None


class SegmentDefinitions:
    """The layouts and bodies that records of the open segment define, to which later records refer."""

    def __init__(self) -> None:
        self._layouts: dict[Layout, int] = {}  # place of the record that defines the layout
        self._newest: tuple[Layout, int] | None = None  # of these: records of one layout follow one another
        self._parts: dict[str, _Known] = {}
        self._base: dict[str, _Known] = {}  # the parts of the boundary to which later ones refer
        self._base_at = 0
        self._bodies: dict[bytes, int] = {}  # place of the record that holds the body of a step

    def describe(self, record: Record, content: EncodedContent) -> tuple[bytes, PlacedBody]:
        """Encode the description of a record, and place its body.

        What an earlier record of the segment defines, a layout or a body, is referred to.
        """
        payload, body = record.payload, content.body
        layout_at, layout = self._layout(payload.layout) if payload.layout.tensors else (0, b"")
        whole = body.get(WHOLE)
        body_at = 0 if whole is None or whole.arrays else self._bodies.get(whole.blob, 0)
        if body_at:
            body = {name: part for name, part in body.items() if name != WHOLE}
        placed = PlacedBody(record.offset, record.offset + HEAD.size + record.stored_bytes)
        self._pack(body, placed, is_boundary=content.kind.is_boundary)
        description = Description(
            layout_at,
            body_at,
            payload.nbytes,
            layout,
            _absent(payload) if payload.absent else b"",
            _sparse(payload.sparse) if payload.sparse else b"",
            record.sums,
            record.codecs,
            content.digests,
            tree.encode(content.scalars, is_checked=True) if content.scalars else b"",
            tree.encode(placed.packed, is_checked=True) if placed.packed else b"",
        )
        return pack_description(description), placed

    def written(self, layout: Layout, placed: PlacedBody, place: int) -> None:
        """Note that a record is in the file, so that later records can refer to it by its place."""
        if layout.tensors and (self._newest is None or self._newest[0] is not layout):
            self._newest = layout, self._layouts.setdefault(layout, place)
        if not placed.record:
            return  # The first record has no place: 0 stands for none.
        for known in placed.fresh:
            known.at = place
        self._parts.update(placed.parts)
        if placed.is_base:
            self._base, self._base_at = {key: part for key, part in placed.parts.items() if key != WHOLE}, place
        whole = placed.parts.get(WHOLE)
        if whole is not None and not whole.part.arrays:
            if len(self._bodies) >= _WHOLE_BODIES_MAX:
                self._bodies.clear()
            self._bodies[whole.part.blob] = place

    def _layout(self, layout: Layout) -> tuple[int, bytes]:
        """Return the place of the record that defines a layout, or 0 and the encoded layout if this record defines it."""
        if self._newest is not None and self._newest[0] is layout:
            return self._newest[1], b""
        known = self._layouts.get(layout)
        return (0, pack_layout(layout)) if known is None else (known, b"")

    def _pack(self, body: EncodedBody, placed: PlacedBody, *, is_boundary: bool) -> None:
        """Pack a body for a record: what has changed, and references to earlier records for the rest."""
        for name, part in body.items():
            known = self._parts.get(name)
            if known is None or known.part is not part:
                if part.arrays or (known is not None and known.arrays):
                    known = self._place(part, known, placed)
                elif known is not None and known.part.blob == part.blob:
                    known.part = part
                else:
                    known = _Known(part, placed.record, [])
                    placed.fresh.append(known)
            placed.parts[name] = known
        if not (is_boundary and self._base and self._refer_to_base(placed)):
            placed.is_base = is_boundary
            placed.packed = _pack(placed, {})

    def _refer_to_base(self, placed: PlacedBody) -> bool:
        """Pack what has changed since an earlier boundary. Return False if too few parts are equal."""
        base = self._base
        packed = _pack(placed, base)
        if not base.keys() <= placed.parts.keys():
            for name in base.keys() - placed.parts.keys():
                packed |= dict.fromkeys([name, *(f"{name}/#{i}" for i in range(len(base[name].arrays)))])
        kinds = [*map(type, packed.values())]
        if kinds.count(int) + kinds.count(type(None)) > _PLACES_MAX:
            return False
        placed.packed = {BASE: self._base_at, **packed}
        return True

    def _place(self, part: Part, known: _Known | None, placed: PlacedBody) -> _Known:
        """Return where a part stands: what has changed since it last stood in the segment, in this record."""
        arrays = self._place_arrays(part.arrays, known, placed) if part.arrays else []
        if known is not None and known.part.blob == part.blob:
            if arrays == known.arrays:
                known.part = part
                return known
            return _Known(part, known.at, arrays)
        found = _Known(part, placed.record, arrays)
        placed.fresh.append(found)
        return found

    def _place_arrays(self, arrays: Sequence[Array], known: _Known | None, placed: PlacedBody) -> list[_KnownArray]:
        before = known.arrays if known is not None else []
        found: list[_KnownArray] = []
        for i, array in enumerate(arrays):
            digest = array.data.nbytes, xxhash.xxh3_128_intdigest(array.data.data)
            if i < len(before) and before[i].digest == digest:
                found.append(before[i])
            else:
                found.append(_KnownArray(digest, placed.add(array), placed.record))
                placed.fresh.append(found[-1])
        return found


def _pack(placed: PlacedBody, base: Mapping[str, _Known]) -> PackedBody:
    """Return what a record has of the parts that are not those of `base`."""
    record = placed.record
    packed: PackedBody = {}
    for name, known in placed.parts.items():
        old = base.get(name)
        if old is known:
            continue
        if known.arrays or (old is not None and old.arrays):
            known.pack(packed, name, record, old)
        elif old is None or old.at != known.at:
            packed[name] = known.part.blob if known.at == record else known.at
    return packed


def _absent(payload: Payload) -> bytes:
    """Return the bitmap of absent tensors."""
    bits = bytearray((len(payload.layout) + 7) // 8)
    for i in payload.absent:
        bits[i // 8] |= 1 << (i % 8)
    return bytes(bits)


def _sparse(sparse: Mapping[int, SparseForm]) -> bytes:
    """Return the forms of sparse tensors, encoded."""
    return tree.encode({i: tuple(form) for i, form in sparse.items()})


class PlacedBody:
    """A body that is packed for one record.

    Attributes:
        fresh: parts and arrays that stand in this record.
        packed: what the record has of them.
        is_base: True if the body has all parts of a boundary.
        buffers: bytes of the large arrays that this record stores, in order.
        end: offset in the file after these arrays.
    """

    def __init__(self, record: int, arrays_at: int) -> None:
        self.record, self.end = record, arrays_at
        self.parts: dict[str, _Known] = {}
        self.fresh: list[_Known | _KnownArray] = []
        self.packed: PackedBody = {}
        self.is_base = False
        self.buffers: list[Bytes] = []

    def add(self, array: Array) -> Row:
        """Append the bytes of an array to `buffers`, and return its row."""
        codec, stored = compress(array.data)
        row = [self.end, stored.nbytes, xxhash.xxh3_64_intdigest(stored.data), int(codec)]
        if stored.nbytes:
            self.buffers.append(stored)
            self.end += stored.nbytes
        return row


def unpack_body(body: bytes) -> PackedBody:
    """Return a packed body.

    Raises:
        MalformedTree: the bytes are not a packed body.
    """
    found = tree.decode(body) if body else {}
    if type(found) is not dict or not all(map(_is_part, found.items())):
        raise tree.MalformedTree("a part of the body is not of the form of parts")
    return found


def _is_part(item: tuple[Any, Any]) -> bool:
    name, part = item
    if type(name) is not str:
        return type(name) is int and name == BASE and _is_place(part)
    return part is None or type(part) is bytes or _is_place(part) or _is_row(part)


def _is_place(packed: Any) -> bool:
    return type(packed) is int and packed > 0


def _is_row(row: Any) -> bool:
    return type(row) is list and len(row) == 4 and all(type(n) is int and 0 <= n < 1 << 64 for n in row)


def merge_bodies(body: PackedBody, base: PackedBody) -> PackedBody:
    """Return the packed parts of a boundary; `base` is the body at the place that `body` names.

    Raises:
        ValueError: the base refers to another boundary.
    """
    if BASE in base:
        raise ValueError("a boundary refers to one that does not have all its parts")
    found = {name: part for name, part in base.items() if name and name[0] != "/"}  # The base may be a step, too.
    return {name: part for name, part in (found | body).items() if name != BASE and part is not None}


def resolve(name: str, part: Any, body_at: Callable[[int], PackedBody]) -> bytes | Row:
    """Return a part's tree or an array's row, which another record may have.

    Raises:
        ValueError: no record holds it.
    """
    found: bytes | Row | None = body_at(part).get(name) if type(part) is int else part
    if type(found) is not bytes and type(found) is not list:
        raise ValueError(f"the part {name!r} is missing")
    return found
