"""Verification of a journal: every checksum, every chain, every byte of log and checkpoints, and the catalog against the files.

Files are read by plain reads, and LMDB opens a catalog only after a check of its structure. So no content can end the process
or raise an error: damage is reported as a `Problem`. Entries that recovery cannot reach any more are not checked: those after
the fork of another timeline, and those that a power cut tore off. Entries before the oldest checkpoint may be missing. The run
may be written during the verification: a file that is retired while it is read is not a problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..base.errors import CatalogUnavailable, CorruptCatalog, CorruptCheckpoint, LogUnavailable, UnknownFormat
from ..catalog import CATALOG_NAME, Catalog, CheckpointRow, SegmentRow, Tables
from ..checkpoints import Checkpoint
from ..checkpoints.folder import MANIFEST
from ..journal.owner_lock import read_owner
from ..log.record_format import EntryKind
from ..log.record_rows import read_records
from ..log.scanner import scan
from ..recovery.journal_facts import CatalogContents, read_catalog, read_unlisted
from .findings import Checked, Finding, Problem
from .listing import add_unlisted, is_retired
from .log_checks import verify_log


def verify_journal(folder: Path) -> Iterator[Finding]:
    """Check the journal in a folder. Yield the parts that were checked, and the damage."""
    try:
        yield from _verify(folder)
    except UnknownFormat as error:
        yield Problem(Path(str(error.path)), error.why)


def _verify(folder: Path) -> Iterator[Finding]:
    catalog = folder / CATALOG_NAME
    try:
        _read_every_row(folder)
        known = read_catalog(folder)
        yield Checked(catalog, catalog.stat().st_size)
    except CorruptCatalog as error:
        known = CatalogContents()
        yield Problem(catalog, error.why)
    found = read_unlisted(folder, known)
    newest, owner = max((row.ordinal for row in known.segments), default=0), read_owner(folder)
    for row in found.segments if known.names else ():
        # A kill between the name of the newest file and its row is ordinary.
        if row.ordinal < newest or owner is None or owner.has_closed:
            yield Problem(catalog, f"it does not list segment {row.file}, which reaches step {row.last_step}")
    yield from verify_checkpoints(folder, known)
    yield from verify_records(folder, known)
    add_unlisted(known, found)
    yield from verify_log(folder, known)


def _read_every_row(folder: Path) -> None:
    """Decode all rows of the catalog.

    Raises:
        CorruptCatalog: a row is damaged.
    """
    catalog = Catalog.open(folder)
    try:
        catalog.read(Tables.check)
    finally:
        catalog.close()


def verify_checkpoints(folder: Path, known: CatalogContents) -> Iterator[Finding]:
    """Check all bytes of all checkpoints, listed or not, except retired ones."""
    rows = {row.name: row for row in known.checkpoints}
    names = set(rows) | {path.name for path in (folder / "checkpoints").glob("step-*")}
    for name in sorted(names):
        row = rows.get(name)
        if row is not None and row.state == "retired":
            continue
        for finding in _verify_checkpoint(folder / "checkpoints" / name, row):
            if isinstance(finding, Problem) and row is not None and is_retired(folder, row):
                break
            yield finding


def _verify_checkpoint(path: Path, row: CheckpointRow | None) -> Iterator[Finding]:
    try:
        with Checkpoint(path) as checkpoint:
            identity = (checkpoint.step, checkpoint.sequence, checkpoint.chain, checkpoint.timeline)
            if row is not None and identity != (row.step, row.sequence, int(row.chain, 16), row.timeline):
                yield Problem(path / MANIFEST, "it describes another checkpoint than the one that the catalog lists", row.step)
            for nbytes, damage in checkpoint.verify():
                yield Checked(path, nbytes, tensors=1)
                if damage is not None:
                    yield _make_checkpoint_problem(damage, checkpoint.step)
    except CorruptCheckpoint as damage:
        yield _make_checkpoint_problem(damage, None if row is None else row.step)


def _make_checkpoint_problem(damage: CorruptCheckpoint, step: int | None) -> Problem:
    return Problem(Path(str(damage.path)), damage.why, step, damage.tensor)


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
