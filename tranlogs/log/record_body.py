"""Descriptions and bodies of records. What does not change, a layout or a part of a body, is stored once in a segment.

The body of a boundary is a dict, and each of its values is a *part*. A `Fixed` below a part is a part, too: its name is that
of the part above, a slash, and its index there. The body of a step, of an after-image and of a segment's first record is one
part with the name "". A record that is a step and a boundary has both. In a record, a body is a dict of parts:

    name: content             the part, encoded
    name: place               of the record in the same file that has it there (see record_format.py)
    name: [content, arrays]   a part with large arrays; each of the two may be a place
    name: None                the boundary does not have the part, in contrast to the one at `0`
    0: place                  of another boundary, with all its parts: those that are not named here are that one's, but ""

    arrays                    [offset in the file, stored bytes, xxh3_64 of them, codec] each, in the order of their indices

A record at a place has there what it is referred to for, and does not refer on. An array that the part had when it last stood
in the segment is not written again; what counts is its length and its 128-bit hash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import xxhash

from ..base.types import AnyArray, Array, Bytes
from ..encoding import tree
from ..encoding.compression import compress
from .layout import Layout, Payload, SparseForm, pack_layout
from .payload_writer import PieceWriter
from .record_format import HEAD, Description, RecordKind, pack_description

_IMMUTABLE = frozenset((bool, int, float, str, bytes))

WHOLE = ""  # the part that is the whole body
BASE = 0  # the key of the place of another boundary
_PLACES_MAX = 8  # in a body that refers to another boundary; a body with more becomes one with all its parts
_WHOLE_BODIES_MAX = 64  # Later records of a segment can refer to this number of different bodies of steps.

Row = list[int]  # of an array: offset, stored bytes, checksum, codec
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
class _Known:
    """A part as it last stood in the segment.

    Attributes:
        content_at: place of the record that has its content; its offset until it is written.
        arrays_at: the same of the record that has the rows of its arrays; 0 if it has no arrays.
        places: of its arrays, by content.
    """

    part: Part
    content_at: int
    arrays_at: int = 0
    rows: list[Row] = field(default_factory=list)
    places: dict[Digest, Row] = field(default_factory=dict)

    def pack_arrays(self, record: int) -> list[Any]:
        """Return what the record at an offset has of a part with arrays: its content and its rows, or places of them."""
        return [
            self.part.blob if self.content_at == record else self.content_at,
            self.rows if self.arrays_at == record else self.arrays_at,
        ]


class SegmentDefinitions:
    """The layouts and bodies that records of the open segment define."""

    def __init__(self) -> None:
        self._layouts: dict[Layout, int] = {}  # place of the record that defines the layout
        self._newest: tuple[Layout, int] | None = None  # of these: records of one layout follow one another
        self._parts = PartsWriter()

    def describe(self, payload: Payload, pieces: PieceWriter, content: EncodedContent) -> tuple[bytes, PlacedBody]:
        """Encode the description of a record, and place its body.

        What an earlier record of the segment defines, a layout or a body, is referred to.
        """
        body, ends_unit = content.body, content.kind.is_boundary
        layout_at, layout = self._layout(payload.layout) if payload.layout.tensors else (0, b"")
        body_at = self._parts.shared_body(body)
        payload_end = pieces.offset + HEAD.size + pieces.stored_bytes
        if body_at:
            body = {name: part for name, part in body.items() if name != WHOLE}
        if body or ends_unit:
            placed = self._parts.write(body, pieces.offset, payload_end, is_boundary=ends_unit)
        else:
            placed = PlacedBody(pieces.offset, payload_end)
        description = Description(
            layout_at,
            body_at,
            payload.nbytes,
            layout,
            _absent(payload) if payload.absent else b"",
            _sparse(payload.sparse) if payload.sparse else b"",
            pieces.sums,
            pieces.codecs,
            content.digests,
            tree.encode(content.scalars, is_checked=True) if content.scalars else b"",
            tree.encode(placed.packed, is_checked=True) if placed.packed else b"",
        )
        return pack_description(description), placed

    def written(self, layout: Layout, placed: PlacedBody, place: int) -> None:
        """Note that a record is in the file, so that later records can refer to it by its place."""
        if layout.tensors and (self._newest is None or self._newest[0] is not layout):
            self._newest = layout, self._layouts.setdefault(layout, place)
        self._parts.written(placed, place)

    def _layout(self, layout: Layout) -> tuple[int, bytes]:
        """Return the place of the record that defines a layout, or 0 and the encoded layout if this record defines it."""
        if self._newest is not None and self._newest[0] is layout:
            return self._newest[1], b""
        known = self._layouts.get(layout)
        return (0, pack_layout(layout)) if known is None else (known, b"")


def _absent(payload: Payload) -> bytes:
    """Return the bitmap of absent tensors."""
    bits = bytearray((len(payload.layout) + 7) // 8)
    for i in payload.absent:
        bits[i // 8] |= 1 << (i % 8)
    return bytes(bits)


def _sparse(sparse: Mapping[int, SparseForm]) -> bytes:
    """Return the forms of sparse tensors, encoded."""
    return tree.encode({i: tuple(form) for i, form in sparse.items()})


class PartsWriter:
    """Packs the bodies of the records of one segment: what has changed, and references to earlier records for the rest."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._base: dict[str, _Known] = {}  # the parts of the boundary to which later ones refer
        self._base_at = 0
        self._bodies: dict[bytes, int] = {}  # place of the record that holds the body

    def shared_body(self, body: EncodedBody) -> int:
        """Return the place of an earlier record that holds the same body; 0 if there is none."""
        part = body.get(WHOLE)
        return 0 if part is None or part.arrays else self._bodies.get(part.blob, 0)

    def write(self, body: EncodedBody, record: int, arrays_at: int, *, is_boundary: bool) -> PlacedBody:
        """Pack a body for a record, and assign offsets to its large arrays.

        Args:
            arrays_at: offset at which the body's large arrays are written.
            is_boundary: True if the parts other than "" are those of a boundary.
        """
        placed = PlacedBody(record, arrays_at)
        for name, part in body.items():
            known = self._known.get(name)
            if known is None or known.part is not part:
                if known is not None and not part.arrays and known.part.blob == part.blob:
                    known.part = part
                elif part.arrays:
                    known = self._place_arrays(part, known, placed)
                else:
                    known = _Known(part, record)
                    placed.fresh.append(known)
            placed.parts[name] = known
        if is_boundary:
            self._refer_to_base(placed)
        else:
            placed.packed, _ = _pack(placed, {})
        return placed

    def _refer_to_base(self, placed: PlacedBody) -> None:
        """Pack what has changed since an earlier boundary, or all parts if too few of them are equal."""
        base = self._base
        changed, elsewhere = _pack(placed, base)
        gone = [] if base.keys() <= placed.parts.keys() else [name for name in base if name not in placed.parts]
        if base and len(gone) + elsewhere <= _PLACES_MAX:
            placed.packed = {BASE: self._base_at, **changed, **dict.fromkeys(gone)}
        else:
            placed.packed, _ = _pack(placed, {})
            placed.is_base = True

    def written(self, placed: PlacedBody, place: int) -> None:
        """Note that a record is in the file, so that later records can refer to it by its place."""
        if not placed.record:
            return  # The first record has no place: 0 stands for none.
        for known in placed.fresh:
            known.content_at = place if known.content_at == placed.record else known.content_at
            known.arrays_at = place if known.arrays_at == placed.record else known.arrays_at
        self._known.update(placed.parts)
        if placed.is_base:
            self._base, self._base_at = {key: part for key, part in placed.parts.items() if key != WHOLE}, place
        whole = placed.parts.get(WHOLE)
        if whole is not None and not whole.part.arrays:
            if len(self._bodies) >= _WHOLE_BODIES_MAX:
                self._bodies.clear()
            self._bodies[whole.part.blob] = place

    def _place_arrays(self, part: Part, known: _Known | None, placed: PlacedBody) -> _Known:
        """Return where a part with arrays stands: what has changed since it last stood in the segment, in this record."""
        is_same = known is not None and known.part.blob == part.blob
        before = known.places if known is not None else {}
        found = _Known(part, known.content_at if known is not None and is_same else placed.record)
        for array in part.arrays:
            content = array.data.nbytes, xxhash.xxh3_128_intdigest(array.data.data)
            row = found.places.get(content) or before.get(content)
            if row is None:
                row = placed.add(array)
            found.places[content] = row
            found.rows.append(row)
        placed.fresh.append(found)
        is_at_known = known is not None and known.rows == found.rows
        found.arrays_at = known.arrays_at if known is not None and is_at_known else placed.record
        if is_at_known and is_same:
            assert known is not None
            known.part = part
            return known
        return found


def _pack(placed: PlacedBody, base: Mapping[str, _Known]) -> tuple[PackedBody, int]:
    """Return what a record has of the parts that are not those of `base`, and how many of them stand in other records."""
    record, elsewhere = placed.record, 0
    packed: PackedBody = {}
    for name, known in placed.parts.items():
        if base.get(name) is known:
            continue
        if known.part.arrays:
            content, rows = packed[name] = known.pack_arrays(record)
            elsewhere += type(content) is type(rows)
        else:
            is_here = known.content_at == record
            packed[name] = known.part.blob if is_here else known.content_at
            elsewhere += not is_here
    return packed, elsewhere


class PlacedBody:
    """A body that is packed for one record.

    Attributes:
        fresh: those that may stand in this record.
        packed: what the record has of them.
        is_base: True if the body has all parts of a boundary.
        buffers: bytes of the large arrays that this record stores, in order.
        end: offset in the file after these arrays.
    """

    def __init__(self, record: int, arrays_at: int) -> None:
        self.record, self.end = record, arrays_at
        self.parts: dict[str, _Known] = {}
        self.fresh: list[_Known] = []
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
    if type(part) is list:
        return len(part) == 2 and _is_content(part[0]) and (_is_place(part[1]) or _is_rows(part[1]))
    return part is None or _is_content(part)


def _is_content(content: Any) -> bool:
    return type(content) is bytes or _is_place(content)


def _is_place(packed: Any) -> bool:
    return type(packed) is int and packed > 0


def _is_rows(rows: Any) -> bool:
    return type(rows) is list and all(
        type(row) is list and len(row) == 4 and all(type(n) is int and 0 <= n < 1 << 64 for n in row) for row in rows
    )


def merge_bodies(body: PackedBody, base: PackedBody) -> PackedBody:
    """Return the packed parts of a boundary; `base` is the body at the place that `body` names.

    Raises:
        ValueError: the base refers to another boundary.
    """
    if BASE in base:
        raise ValueError("a boundary refers to one that does not have all its parts")
    found = base | body
    if WHOLE not in body:
        found.pop(WHOLE, None)  # The base may be a step, too.
    return {name: part for name, part in found.items() if name != BASE and part is not None}


def merge_part(name: str, part: Any, body_at: Callable[[int], PackedBody]) -> tuple[bytes, list[Row]]:
    """Return a part's tree and the rows of its arrays.

    Raises:
        ValueError: a record does not hold what is referred to.
    """
    content, rows = part if type(part) is list else (part, [])
    if type(content) is int:
        there = body_at(content).get(name)
        content = there[0] if type(there) is list else there
    if type(rows) is int:
        there = body_at(rows).get(name)
        rows = there[1] if type(there) is list else None
    if type(content) is not bytes or type(rows) is not list:
        raise ValueError(f"a record refers to one that does not hold the part {name!r}")
    return content, rows
