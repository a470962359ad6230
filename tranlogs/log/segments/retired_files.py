"""Deletion of the files of retired segments. A segment is retired in the catalog before its file is deleted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...catalog import Catalog, Change, segment_key
from . import segment_file as files


def unlink_retired(catalog: Catalog, folder: Path, make: Callable[[Change], bool]) -> int:
    """Delete the files of retired segments, and their catalog rows.

    A file that another process reads or recycles is left for the next call.

    Args:
        catalog: the journal's.
        folder: of the segment files.
        make: makes the change of the catalog.

    Returns:
        The number of bytes that were freed.
    """
    freed, deleted = 0, Change()
    for row in catalog.segments():
        if row.state == "retired" and files.delete(folder / row.file):
            freed += row.size
            deleted.expects[segment_key(row.ordinal)] = row
            deleted.deletes.append(segment_key(row.ordinal))
    if deleted:
        make(deleted)
    return freed
