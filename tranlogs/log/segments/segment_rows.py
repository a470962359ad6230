"""What the catalog says of a segment while it is written: opened at a position, then sealed with its last record."""

from __future__ import annotations

from dataclasses import replace

from ...base.clock import Clock
from ...catalog import Catalog, SegmentRow, segment_key
from ..record import Position
from .segment_file import SegmentFile


def record_opened(catalog: Catalog, segment: SegmentFile, base: Position) -> None:
    """Record that a prepared segment is open; its first record follows the position `base`."""
    with catalog.transaction() as tables:
        row = tables.get(segment_key(segment.ordinal), SegmentRow)
        assert row is not None
        row = replace(row, state="open", timeline=base.timeline, base_sequence=base.sequence, base_step=base.step)
        tables.put(segment_key(segment.ordinal), row)


def record_size(catalog: Catalog, segment: SegmentFile, size: int) -> None:
    """Record the size that an open segment's file is about to be cut to.

    The catalog is told first. A process that dies before the cut leaves a file that is longer than its row says, which is sound
    for an open segment; a shorter file would be reported as damaged.
    """
    with catalog.transaction() as tables:
        row = tables.get(segment_key(segment.ordinal), SegmentRow)
        assert row is not None
        tables.put(segment_key(segment.ordinal), replace(row, size=size))


def record_sealed(catalog: Catalog, clock: Clock, segment: SegmentFile, last: Position) -> None:
    """Close a segment's file, and record that nothing is written to it any more."""
    used, size = segment.used_bytes, segment.size
    segment.close()  # first: once the catalog says "sealed", other threads may retire and reuse the file
    with catalog.transaction() as tables:
        row = tables.get(segment_key(segment.ordinal), SegmentRow)
        assert row is not None
        row = replace(
            row,
            state="sealed",
            last_sequence=last.sequence,
            last_step=last.step,
            used_bytes=used,
            size=size,
            sealed_at=clock.now(),
        )
        tables.put(segment_key(segment.ordinal), row)
