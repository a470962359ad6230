"""Updates of a segment's catalog row: opened after a position, then sealed with its last record."""

from __future__ import annotations

from dataclasses import replace

from ...base.clock import Clock
from ...catalog import Catalog, SegmentRow, segment_key
from ..record_format import Position
from .segment_file import SegmentFile


def record_opened(catalog: Catalog, segment: SegmentFile) -> None:
    """Record that a prepared segment is open; its first record follows the position `segment.base`."""
    base = segment.base
    with catalog.transaction() as tables:
        row = tables.get(segment_key(segment.ordinal), SegmentRow)
        assert row is not None
        row = replace(row, state="open", timeline=base.timeline, base_sequence=base.sequence, base_step=base.step)
        tables.put(segment_key(segment.ordinal), row)


def record_size(catalog: Catalog, segment: SegmentFile, size: int) -> None:
    """Record the size to which an open segment's file is about to be truncated.

    The catalog is updated before the file is truncated. If the process ends in between, the file is longer than its row says,
    which is valid for an open segment. A shorter file would be reported as damaged.
    """
    with catalog.transaction() as tables:
        row = tables.get(segment_key(segment.ordinal), SegmentRow)
        assert row is not None
        tables.put(segment_key(segment.ordinal), replace(row, size=size))


def record_sealed(catalog: Catalog, clock: Clock, segment: SegmentFile, last: Position) -> None:
    """Close a segment's file, and record that nothing more is written to it."""
    used, size = segment.used_bytes, segment.size
    segment.close()  # Once the row is "sealed", other threads may retire the segment and recycle its file.
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
