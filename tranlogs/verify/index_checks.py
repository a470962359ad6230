"""Verification of the index of a log against the segments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..base.errors import CatalogUnavailable, CorruptCatalog, LogUnavailable
from ..catalog import SegmentRow
from ..log.index import INDEX_NAME, LogIndex
from ..log.record_format import EntryKind, checksum_of
from ..log.scanner import scan
from ..recovery.journal_facts import CatalogContents
from .findings import Checked, Finding, Problem


def verify_index(folder: Path, known: CatalogContents) -> Iterator[Finding]:
    """Compare the index with the segments. Records that it lacks are no problem: they are added when the run continues."""
    path = folder / "log" / INDEX_NAME
    if not known.run_id or not path.exists():
        return
    try:
        index = LogIndex.open(folder / "log", known.run_id)
    except CorruptCatalog as error:
        yield Problem(path, error.why)
        return
    except LogUnavailable:
        return
    try:
        for row in known.segments:
            if row.state != "retired":
                yield from _compare_index(index, folder / "log" / row.file, row)
        yield Checked(path, path.stat().st_size)
    except CorruptCatalog as error:
        yield Problem(path, error.why)
    except CatalogUnavailable:
        return
    finally:
        index.close()


def _compare_index(index: LogIndex, path: Path, row: SegmentRow) -> Iterator[Finding]:
    """Yield the records in which the index differs from a segment."""
    indexed = index.locations(row.number)  # read first: records that are written meanwhile are in the segment only
    try:
        found = {one.head.sequence: one for one in scan(path, row.number) if one.head.kind != EntryKind.SEGMENT}
    except OSError:
        return
    for location in indexed:
        there = found.get(location.head.sequence)
        if (
            location.head.kind != EntryKind.SEGMENT
            and there is not None
            and (there.offset, there.head) != (location.offset, location.head)
        ):
            yield Problem(
                index.path, f"record {location.head.sequence} differs from the one in {path.name}", location.head.step
            )
        elif location.description is not None and checksum_of(location.description) != location.head.description_sum:
            yield Problem(index.path, f"the description of record {location.head.sequence} is damaged", location.head.step)
    newest = max(found, default=-1)
    lost = [one.head for one in indexed if one.head.sequence > newest and one.head.kind != EntryKind.SEGMENT]
    if lost and row.state != "sealed":  # where a sealed segment ends is known from the catalog
        yield Problem(path, f"record {lost[0].sequence} and later ones are in the index, but not in the file", lost[0].step)
