"""The segments that a dead process left: they are sealed, and retired where no recovery can reach their records."""

from __future__ import annotations

import os
from dataclasses import replace

from ..base.errors import CannotRead, LogUnavailable
from ..catalog import Catalog, SegmentRow, segment_key
from ..log.record_format import Position
from ..log.record_rows import complete_records, delete_records
from ..log.scanner import scan
from ..log.segments.segment_file import was_written
from ..rebuild_catalog import read_segment
from .ownership.writer_lock import own_briefly, owns
from .paths import JournalPaths


def seal_if_abandoned(paths: JournalPaths) -> int:
    """Seal the segments that a dead trainer left open, so that they can be shipped and pruned; return their number.

    A trainer that starts meanwhile waits until they are sealed.
    """
    catalog = Catalog.open(paths.folder)
    try:
        if owns(paths.folder) or not _find_abandoned(catalog):
            return 0
        with own_briefly(paths.folder) as is_owner:
            if not is_owner:
                return 0
            writable = Catalog.open(paths.folder, writable=True)
            try:
                return seal_abandoned_segments(paths, writable, sync=True)
            finally:
                writable.close()
    finally:
        catalog.close()


def _find_abandoned(catalog: Catalog) -> list[SegmentRow]:
    return [row for row in catalog.segments() if row.state in ("ready", "open")]


def seal_abandoned_segments(paths: JournalPaths, catalog: Catalog, *, sync: bool) -> int:
    """Seal the segments that a dead process left open, so that a new writer writes into fresh files only.

    Args:
        paths: the journal's folders.
        catalog: the journal's catalog, open for writing.
        sync: True makes the records in the segments durable.

    Returns:
        The number of segments that were left open.
    """
    newest = max((row.number for row in catalog.timelines()), default=1)
    abandoned = _find_abandoned(catalog)
    for row in abandoned:
        path = paths.log / row.file
        exists = path.exists()
        try:
            is_empty = exists and row.state == "ready" and not was_written(path, row.number)
            found = read_segment(path, row.timeline or newest) if exists and not is_empty else None
        except (CannotRead, OSError) as error:  # A segment that recovery has read must not be treated as empty.
            raise LogUnavailable(f"{path}: {error}") from error
        if found is not None and sync:
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(fd)  # A power cut must not lose records that recovery has read.
            finally:
                os.close(fd)
        with catalog.transaction() as tables:
            if found is not None:
                sealed, records = found
                tables.put(segment_key(row.ordinal), replace(sealed, state="sealed", created_at=row.created_at))
                complete_records(tables, sealed, records)
            elif not exists:
                tables.delete(segment_key(row.ordinal))
                delete_records(tables, row.ordinal)
            elif is_empty:
                tables.put(segment_key(row.ordinal), replace(row, state="retired"))
            else:  # The segment was written, but no record can be read: keep the file until a checkpoint makes it unnecessary.
                tables.put(segment_key(row.ordinal), replace(row, state="sealed", last_sequence=row.base_sequence))
    return len(abandoned)


def retire_unreachable_segments(paths: JournalPaths, catalog: Catalog, position: Position) -> None:
    """Retire the sealed segments that begin at or after a position on its timeline, and hold no boundary.

    A power cut can leave the first records of a segment on the disk, and none of the records before them. No boundary commits
    these records, and the run continues before them on the same timeline.

    Args:
        paths: the journal's folders.
        catalog: the journal's catalog, open for writing.
        position: where the run continues.
    """
    later = [
        row
        for row in catalog.segments()
        if row.state == "sealed" and row.timeline == position.timeline and row.base_sequence >= position.sequence
    ]
    for row in later:
        try:
            locations = scan(paths.log / row.file, row.number)
        except (CannotRead, OSError):  # The segment stays until a checkpoint makes it unnecessary.
            continue
        if not any(location.head.kind.is_boundary for location in locations):
            with catalog.transaction() as tables:
                tables.put(segment_key(row.ordinal), replace(row, state="retired"))
