"""What records of the open segment define, so that later records of the same segment can refer to it."""

from __future__ import annotations

from collections.abc import Mapping

from ..encoding import tree
from .body import EncodedBody, PartsWriter, PlacedBody
from .layout import Layout, Payload, SparseForm, pack_layout
from .payload_writer import PieceWriter
from .record import HEAD, Description, pack_description

Scalars = dict[str, float]  # what the loop noted for its curves


class DescribedRecord:
    """The description of a record, and what the record defines for later ones.

    Attributes:
        description: its bytes.
        buffers: bytes of the body's large arrays, which follow the payload.
        payload_bytes: of the payload and these arrays.
    """

    __slots__ = ("buffers", "description", "layout", "offset", "payload_bytes", "placed")

    def __init__(self, offset: int, description: bytes, placed: PlacedBody | None, layout: Layout | None, end: int) -> None:
        self.offset, self.description, self.placed, self.layout = offset, description, placed, layout
        self.buffers = placed.buffers if placed is not None else []
        self.payload_bytes = (placed.end if placed is not None else end) - offset - HEAD.size


class SegmentDefinitions:
    """The layouts and bodies that records of the open segment define."""

    def __init__(self) -> None:
        self._layouts: dict[Layout, int] = {}  # offset of the record that defines it
        self._parts = PartsWriter()

    def describe(
        self,
        offset: int,
        payload: Payload,
        pieces: PieceWriter,
        body: EncodedBody,
        digests: bytes,
        scalars: Scalars | None,
    ) -> DescribedRecord:
        """Describe a record, with references to earlier records where they define the same.

        Args:
            offset: of the record in the segment.
            payload: its tensors.
            pieces: how the tensors are stored.
            body: its encoded body.
            digests: fingerprint of the state after the step.
            scalars: what the loop noted for its curves.
        """
        layout_at, layout = self._layout(payload.layout, offset)
        body_at = self._parts.shared_body(body)
        payload_end = offset + HEAD.size + pieces.stored_bytes
        placed = None if body_at else self._parts.write(body, offset, payload_end)
        description = Description(
            layout_at,
            body_at,
            payload.nbytes,
            layout,
            _absent(payload),
            _sparse(payload.sparse),
            pieces.sums,
            pieces.codecs,
            digests,
            tree.encode(scalars) if scalars else b"",
            tree.encode(placed.packed) if placed else b"",
        )
        return DescribedRecord(offset, pack_description(description), placed, payload.layout if layout else None, payload_end)

    def written(self, record: DescribedRecord) -> None:
        """Note that a record is in the file: later ones may refer to it."""
        if record.layout is not None:
            self._layouts[record.layout] = record.offset
        if record.placed is not None:
            self._parts.written(record.placed)

    def _layout(self, layout: Layout, offset: int) -> tuple[int, bytes]:
        """Return where a layout is defined, and its bytes if this record defines it."""
        if not layout.tensors:
            return 0, b""
        known = self._layouts.get(layout)
        return (offset, pack_layout(layout)) if known is None else (known, b"")


def _absent(payload: Payload) -> bytes:
    """Return the bitmap of absent tensors."""
    if not payload.absent:
        return b""
    bits = bytearray((len(payload.layout) + 7) // 8)
    for i in payload.absent:
        bits[i // 8] |= 1 << (i % 8)
    return bytes(bits)


def _sparse(sparse: Mapping[int, SparseForm]) -> bytes:
    """Return the forms of sparse tensors, encoded."""
    return tree.encode({i: tuple(form) for i, form in sparse.items()}) if sparse else b""
