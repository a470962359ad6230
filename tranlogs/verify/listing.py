"""Rows of checkpoints and segments for a verification: from the catalog, and from files that the catalog does not list."""

from __future__ import annotations

from pathlib import Path

from ..base.errors import CorruptCatalog
from ..catalog import CheckpointRow, SegmentRow
from ..catalog.lineage import Limits, is_on_lineage
from ..rebuild_catalog import JournalFiles, is_superseded
from ..recovery.journal_facts import CatalogContents, read_catalog


def add_unlisted(known: CatalogContents, found: JournalFiles) -> None:
    """Add the rows that unlisted files describe to the rows of the catalog."""
    known.segments += found.segments
    known.checkpoints += [row for row in found.checkpoints if not is_superseded(row, known.checkpoints)]
    known.timelines += [row for row in found.timelines.values() if row.number not in {row.number for row in known.timelines}]


def list_published(known: CatalogContents, limits: Limits) -> list[CheckpointRow]:
    """Return the published checkpoints on a lineage."""
    return [row for row in known.checkpoints if row.state == "published" and is_on_lineage(row, limits)]


def is_retired(folder: Path, row: SegmentRow | CheckpointRow) -> bool:
    """Return True if the file of a row was retired after the row was read, by a trainer or a monitor."""
    try:
        now = read_catalog(folder)
    except CorruptCatalog:
        return False
    if isinstance(row, CheckpointRow):
        return not any(other.name == row.name and other.state == "published" for other in now.checkpoints)
    return not any(other.file == row.file and other.state != "retired" for other in now.segments)
