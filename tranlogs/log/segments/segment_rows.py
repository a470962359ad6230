"""Updates of a segment's catalog row: opened after a position, then sealed with its last record."""

from __future__ import annotations

from dataclasses import replace

from ...base.clock import Clock
from ...catalog import SegmentRow, Tables, segment_key
from ..record_format import Position
from .segment_file import SegmentFile


def record_opened(tables: Tables, segment: SegmentFile, created_at: float) -> None:
    """Record that a prepared segment is open; its first record follows the position `segment.base`.

    Args:
        tables: of the catalog.
        segment: the segment.
        created_at: time of creation, if the segment could not be listed when it was prepared.
    """
    base = segment.base
    row = tables.get(segment_key(segment.ordinal), SegmentRow)
    if row is None:
        name = segment.path.name
        row = SegmentRow(segment.ordinal, f"{segment.segment_id:016x}", name, segment.size, "ready", created_at=created_at)
    row = replace(row, state="open", timeline=base.timeline, base_sequence=base.sequence, base_step=base.step)
    tables.put(segment_key(segment.ordinal), row)


def record_size(tables: Tables, segment: SegmentFile) -> None:
    """Record that an open segment's file is about to be truncated after its last record.

    The catalog is updated before the file is truncated. If the process ends in between, the file is longer than its row says,
    which is valid for an open segment. A shorter file would be reported as damaged.
    """
    row = tables.get(segment_key(segment.ordinal), SegmentRow)
    assert row is not None
    tables.put(segment_key(segment.ordinal), replace(row, size=segment.used_bytes))


def record_sealed(tables: Tables, clock: Clock, segment: SegmentFile, last: Position) -> None:
    """Record that nothing more is written to a segment. Its file is closed: from now on it may be retired and recycled."""
    row = tables.get(segment_key(segment.ordinal), SegmentRow)
    assert row is not None
    row = replace(
        row,
        state="sealed",
        last_sequence=last.sequence,
        last_step=last.step,
        used_bytes=segment.used_bytes,
        size=segment.size,
        sealed_at=clock.now(),
    )
    tables.put(segment_key(segment.ordinal), row)
