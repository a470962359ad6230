"""Open the index of a journal's log for writing, and complete it from the segments."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from ...base.errors import CannotRead, CorruptCatalog, CorruptRecord, LogUnavailable
from ...catalog import Catalog, SegmentRow
from ...log.index import IndexedRecord, LogIndex, delete_index
from ...log.reader import SegmentReader
from ...log.record_format import Location
from ...log.scanner import scan
from ..paths import JournalPaths

_log = logging.getLogger(__name__)


def open_index(paths: JournalPaths, catalog: Catalog, run_id: str) -> LogIndex:
    """Open the index for writing, and add the records that are in segments but not in the index. Rebuild a damaged index.

    Raises:
        LogUnavailable: the index cannot be written.
    """
    try:
        try:
            return _open_complete_index(paths, catalog, run_id)
        except CorruptCatalog as error:  # the file, or one of its records
            _log.info("%s; rebuilding the index from the segments", error)
            delete_index(paths.log)
            return _open_complete_index(paths, catalog, run_id)
    except CannotRead as error:  # File handles or memory are used up: logging is suspended until there are some again.
        raise LogUnavailable(str(error)) from error


def _open_complete_index(paths: JournalPaths, catalog: Catalog, run_id: str) -> LogIndex:
    index = LogIndex.open(paths.log, run_id, writable=True)
    try:
        for row in catalog.segments():
            if row.state in ("open", "sealed"):
                _complete(index, paths.log / row.file, row)
    except BaseException:
        index.close()
        raise
    return index


def _complete(index: LogIndex, path: Path, row: SegmentRow) -> None:
    """Add the records of a segment that the index lacks, because of a crash or because the index is new."""
    known = index.newest(row.number)
    if row.state == "sealed" and known is not None and known.head.sequence >= row.last_sequence:
        return
    try:
        found = scan(path, row.number, start=known.end if known is not None else 0, last_sequence=row.last_sequence or None)
        with SegmentReader(path) as reader:
            index.add(list(_read_indexed(reader, found)))
    except (CorruptRecord, CannotRead, OSError) as error:  # Recovery and `tranlogs verify` report the damage.
        _log.debug("%s: could not add the segment to the index: %s", path, error)


def _read_indexed(reader: SegmentReader, locations: Iterable[Location]) -> Iterator[IndexedRecord]:
    for location in locations:
        with suppress(CorruptRecord):
            head = location.head
            raw, description = reader.raw(location)
            yield IndexedRecord(head.segment_id, head.sequence, head.step, location.offset, raw, description)
