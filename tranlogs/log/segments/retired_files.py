"""Deletion of the files of retired segments. A segment is retired in the catalog before its file is deleted."""

from __future__ import annotations

from pathlib import Path

from ...catalog import Catalog, SegmentRow, segment_key
from . import segment_file as files


def unlink_retired(catalog: Catalog, folder: Path) -> int:
    """Delete the files of retired segments, and their catalog rows.

    A file that another process reads or recycles is left for the next call.

    Returns:
        The number of bytes that were freed.
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
