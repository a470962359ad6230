"""The bodies of records: plain values in parts. A part that does not change is stored once.

The body of a boundary is a dict, and each of its values is a *part*. The body of any other record is one part with the name
"". In a record, a part is a tuple

    (offset, content, arrays)

    offset   offset of the record in the same file that holds the part in full; 0 if this record holds it in full
    content  the part's tree; None if it equals that of the record at `offset`; a tuple of one `bytes` if it is stored as a
             difference from that tree (`encoding/delta.py`)
    arrays   the part's large arrays, in the order of the tree's indices: list of (name, offset in the file, stored bytes,
             xxh3_64 of them, codec); None if they equal those of the record at `offset`

An array whose bytes lie in the file already, in whatever record and part, is not written again.

A part that is stored in full does not refer to another record. Reading a record therefore needs at most one other record for
each part.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash

from ..base.types import AnyArray, Array, Bytes
from ..encoding import delta, tree
from ..encoding.compression import compress

WHOLE = ""  # the part that is the whole body
_DELTA_BYTES_MIN = 128  # Smaller parts are stored in full.
_ARRAYS_MAX = 4096  # Later records of a segment can refer to this number of different arrays.
_WHOLE_BODIES_MAX = 64  # Later records of a segment can refer to this number of different bodies of steps.

Content = tuple[int, int]  # bytes of an array, and xxh3_64 of them
Row = tuple[str, int, int, int, int]  # name, offset, stored bytes, checksum, codec
PackedPart = tuple[int, Any, Any]  # offset, content, arrays, as defined above


@dataclass(slots=True)
class Part:
    """An encoded part of a body: its tree, and its large arrays with their names."""

    blob: bytes
    arrays: list[tuple[str, Array]] = field(default_factory=list)


EncodedBody = dict[str, Part]


class BodyEncoder:
    """Encodes bodies part by part. A part that is a `Fixed` value is encoded once and recognised by identity."""

    def __init__(self) -> None:
        self._fixed: dict[str, tuple[tree.Fixed, Part]] = {}

    def whole(self, body: Any, adapt: tree.Adapt | None) -> EncodedBody:
        """Encode a body as one part.

        Raises:
            UnencodableState: the body contains a value that cannot be stored.
        """
        return {WHOLE: self._part(WHOLE, body, adapt)}

    def parts(self, body: dict[str, Any], adapt: tree.Adapt | None) -> EncodedBody:
        """Encode a body whose values are parts.

        Raises:
            UnencodableState: the body contains a value that cannot be stored.
        """
        return {name: self._part(name, value, adapt) for name, value in body.items()}

    def _part(self, name: str, value: Any, adapt: tree.Adapt | None) -> Part:
        if type(value) is not tree.Fixed:
            return _encoded(value, name, adapt)
        known = self._fixed.get(name)
        if known is None or known[0] is not value:
            known = self._fixed[name] = value, _encoded(value.value, name, adapt)
        return known[1]


def encode_parts(body: dict[str, Any], adapt: tree.Adapt | None) -> dict[str, bytes]:
    """Encode each value of a body, for comparison with the parts of a boundary."""
    return {name: _encoded(value, name, adapt).blob for name, value in body.items()}


def _encoded(value: Any, path: str, adapt: tree.Adapt | None) -> Part:
    far: list[tuple[str, AnyArray]] = []
    blob = tree.encode(value, path=path, adapt=adapt, out_of_line=far, is_checked=True)
    return Part(blob, [(name, array) for name, array in far if isinstance(array, Array)])


@dataclass(slots=True)
class _Known:
    """A part that a record of the open segment holds in full."""

    part: Part
    offset: int
    rows: list[Row]
    reference: tree.Fixed = field(init=False)  # what a record has in its place while it does not change

    def __post_init__(self) -> None:
        self.reference = tree.Fixed((self.offset, None, None))


class PartsWriter:
    """Packs parts for the records of one segment: in full, as a difference, or as a reference to an earlier record."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._places: dict[Content, Row] = {}  # rows of arrays that lie in the segment, the oldest first
        self._bodies: dict[bytes, int] = {}  # offset of the record that holds the body

    def shared_body(self, body: EncodedBody) -> int:
        """Return the offset of an earlier record that holds the same body; 0 if there is none."""
        part = body.get(WHOLE)
        return 0 if part is None or part.arrays else self._bodies.get(part.blob, 0)

    def write(self, body: EncodedBody, record: int, arrays_at: int) -> PlacedBody:
        """Pack a body for a record, and assign offsets to its large arrays.

        Args:
            body: the encoded body.
            record: offset of the record.
            arrays_at: offset at which the body's large arrays are written.
        """
        placed = PlacedBody(record, arrays_at)
        for name, part in body.items():
            known = self._known.get(name)
            if known is not None and known.part is part:
                placed.packed[name] = known.reference
            else:
                placed.packed[name] = self._write(name, part, known, placed)
        if WHOLE in body and not body[WHOLE].arrays:
            placed.blob = body[WHOLE].blob
        return placed

    def written(self, placed: PlacedBody) -> None:
        """Note that a record is in the file, so that later records can refer to the parts that it holds in full."""
        self._known.update(placed.known)
        for content in placed.places:
            self._places.pop(content, None)
        self._places.update(placed.places)
        for content in list(itertools.islice(self._places, max(len(self._places) - _ARRAYS_MAX, 0))):
            del self._places[content]
        if placed.blob is not None:
            if len(self._bodies) >= _WHOLE_BODIES_MAX:
                self._bodies.clear()
            self._bodies[placed.blob] = placed.record

    def _write(self, name: str, part: Part, known: _Known | None, placed: PlacedBody) -> PackedPart | tree.Fixed:
        rows = [self._place(array_name, array, placed) for array_name, array in part.arrays]
        if known is not None:
            same_rows = None if rows == known.rows else rows
            if part.blob == known.part.blob:
                return known.reference if same_rows is None else (known.offset, None, same_rows)
            if len(part.blob) >= _DELTA_BYTES_MIN and len(part.blob) == len(known.part.blob):
                packed = delta.encode(part.blob, known.part.blob)
                if packed is not None:
                    return known.offset, (packed,), same_rows
        if name != WHOLE:
            placed.known[name] = _Known(part, placed.record, rows)
        return 0, part.blob, rows

    def _place(self, name: str, array: Array, placed: PlacedBody) -> Row:
        """Return the row of an array: an array with the bytes of one in the segment lies there, others go to this record.

        Arrays may move within a body, as the history of LBFGS does, which gives up its oldest directions for new ones.
        """
        content = array.data.nbytes, xxhash.xxh3_64_intdigest(array.data.data)
        known = placed.places.get(content) or self._places.get(content)
        if known is None:
            codec, stored = compress(array.data)
            known = (name, placed.end, stored.nbytes, xxhash.xxh3_64_intdigest(stored.data), int(codec))
            placed.add(stored)
        placed.places[content] = known
        return (name, *known[1:])


class PlacedBody:
    """A body that is packed for one record.

    Attributes:
        record: offset of the record.
        packed: the packed parts by name.
        buffers: bytes of the large arrays that this record stores, in order.
        end: offset in the file after these arrays.
        known: the parts that this record holds in full.
        places: rows of the arrays of this record, by content.
        blob: the tree of the whole body, if later records can refer to it.
    """

    def __init__(self, record: int, arrays_at: int) -> None:
        self.record, self.end = record, arrays_at
        self.packed: dict[str, PackedPart | tree.Fixed] = {}
        self.buffers: list[Bytes] = []
        self.known: dict[str, _Known] = {}
        self.places: dict[Content, Row] = {}
        self.blob: bytes | None = None

    def add(self, stored: Bytes) -> None:
        """Append the bytes of an array to `buffers`."""
        if stored.nbytes:
            self.buffers.append(stored)
            self.end += stored.nbytes


def unpack_parts(body: bytes) -> dict[str, PackedPart]:
    """Return the packed parts of a body by name.

    Raises:
        MalformedTree: the bytes are not an encoded body.
    """
    found = tree.decode(body) if body else {}
    if not isinstance(found, dict) or not all(map(_is_part, found.items())):
        raise tree.MalformedTree("a part of the body is not a tuple (offset, content, arrays)")
    return found


def _is_part(item: tuple[Any, Any]) -> bool:
    name, part = item
    if type(name) is not str or type(part) is not tuple or len(part) != 3:
        return False
    offset, content, rows = part
    if type(offset) is not int or offset < 0 or not _is_content(content) or (offset == 0 and (content is None or rows is None)):
        return False
    return rows is None or (type(rows) is list and all(map(_is_row, rows)))


def _is_content(content: Any) -> bool:
    return (
        content is None
        or type(content) is bytes
        or (type(content) is tuple and len(content) == 1 and type(content[0]) is bytes)
    )


def _is_row(row: Any) -> bool:
    return (
        type(row) is tuple
        and len(row) == 5
        and type(row[0]) is str
        and all(type(n) is int and 0 <= n < 1 << 64 for n in row[1:])
    )


def merge_part(part: PackedPart, full: PackedPart | None) -> tuple[bytes, Sequence[Row]]:
    """Return a part's tree and the rows of its arrays.

    Args:
        part: the part in the record.
        full: the same part in the record that `part` refers to; None if `part` refers to no record.

    Raises:
        ValueError: `full` is not stored in full, or the difference does not fit to it.
    """
    _, content, rows = part
    if full is None:
        return content, rows
    _, full_content, full_rows = full
    if type(full_content) is not bytes or full_rows is None:
        raise ValueError("a part refers to a record that does not hold the part in full")
    if content is None:
        content = full_content
    elif type(content) is tuple:
        content = delta.decode(content[0], full_content)
    return content, full_rows if rows is None else rows
