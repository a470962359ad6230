"""Verification of the records that a catalog lists against the segments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..base.errors import CatalogUnavailable, CorruptCatalog, LogUnavailable
from ..catalog import Catalog, SegmentRow
from ..log.record_format import EntryKind
from ..log.record_rows import read_records
from ..log.scanner import scan
from ..recovery.journal_facts import CatalogContents
from .findings import Finding, Problem


def verify_records(folder: Path, known: CatalogContents) -> Iterator[Finding]:
    """Compare the rows of records with the segments. Records without a row are no problem: recovery scans for them."""
    if not known.names:  # the catalog is damaged, which is reported elsewhere
        return
    try:
        catalog = Catalog.open(folder)
    except (CorruptCatalog, LogUnavailable):
        return
    try:
        for row in known.segments:
            if row.state != "retired":
                yield from _compare(catalog, folder / "log" / row.file, row)
    except CorruptCatalog as error:
        yield Problem(catalog.path, error.why)
    except CatalogUnavailable:
        return
    finally:
        catalog.close()


def _compare(catalog: Catalog, path: Path, row: SegmentRow) -> Iterator[Finding]:
    """Yield the records in which the catalog differs from a segment."""
    # Read first: records that are written meanwhile are in the segment only.
    listed = catalog.read(lambda tables: read_records(tables, row.ordinal))
    try:
        found = {one.head.sequence: one for one in scan(path, row.number) if one.head.kind != EntryKind.SEGMENT}
    except OSError:
        return
    listed = [one for one in listed if one.head.kind != EntryKind.SEGMENT]
    for location in listed:
        there = found.get(location.head.sequence)
        if location.head.segment_id != row.number or (there is not None and there != location):
            yield Problem(
                catalog.path, f"record {location.head.sequence} differs from the one in {path.name}", location.head.step
            )
    newest = max(found, default=-1)
    lost = [one.head for one in listed if one.head.sequence > newest]
    if lost and row.state != "sealed":  # where a sealed segment ends is known from its row
        yield Problem(path, f"record {lost[0].sequence} and later ones are in the catalog, but not in the file", lost[0].step)
