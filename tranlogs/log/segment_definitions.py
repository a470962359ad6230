"""Definitions in the open segment: layouts and bodies that later records of the segment can refer to."""

from __future__ import annotations

from collections.abc import Mapping

from ..encoding import tree
from .layout import Layout, Payload, SparseForm, pack_layout
from .payload_writer import PieceWriter
from .record_body import WHOLE, EncodedBody, PartsWriter, PlacedBody
from .record_format import HEAD, Description, RecordKind, pack_description

Scalars = dict[str, float]  # numbers that the loop logs for its curves, by name


class SegmentDefinitions:
    """The layouts and bodies that records of the open segment define."""

    def __init__(self) -> None:
        self._layouts: dict[Layout, int] = {}  # place of the record that defines the layout
        self._newest: tuple[Layout, int] | None = None  # of these: records of one layout follow one another
        self._parts = PartsWriter()

    def describe(
        self,
        kind: RecordKind,
        payload: Payload,
        pieces: PieceWriter,
        body: EncodedBody,
        digests: bytes,
        scalars: Scalars | None,
    ) -> tuple[bytes, PlacedBody]:
        """Encode the description of a record, and place its body.

        What an earlier record of the segment defines, a layout or a body, is referred to.

        Args:
            payload: the tensors of the record.
            pieces: the place of the record, and the stored form of the tensors.
            body: the encoded body of the record.
            digests: fingerprint of the state after the step.
            scalars: numbers that the loop logs for its curves.
        """
        layout_at, layout = self._layout(payload.layout) if payload.layout.tensors else (0, b"")
        body_at = self._parts.shared_body(body)
        payload_end = pieces.offset + HEAD.size + pieces.stored_bytes
        if body_at:
            body = {name: part for name, part in body.items() if name != WHOLE}
        ends_unit = kind.is_boundary
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
            digests,
            tree.encode(scalars, is_checked=True) if scalars else b"",
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
