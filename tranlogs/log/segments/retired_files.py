"""Files of retired segments: retire in the catalog first, delete bytes after."""

from __future__ import annotations

from pathlib import Path

from ...catalog import Catalog, SegmentRow, segment_key
from . import segment_file as files


def unlink_retired(catalog: Catalog, folder: Path) -> int:
    """Delete the files of retired segments, then their rows; gives the bytes.

    Those that somebody reads, or makes a new segment, stay for the next time.
    """
    freed = 0
    for row in catalog.segments():
        if row.state == "retired" and files.delete(folder / row.file):
            freed += row.size
            with catalog.transaction() as tables:
                now = tables.get(segment_key(row.ordinal), SegmentRow)
                if now is not None and (now.state, now.segment_id) == ("retired", row.segment_id):
                    tables.delete(segment_key(row.ordinal))
    return freed
