"""Verification of a journal: every checksum, every chain, every byte of log and checkpoints, and the catalog against the files.

Files are read by plain reads, and LMDB opens a catalog only after a check of its structure. So no content can end the process
or raise an error: damage is reported as a `Problem`. Entries that recovery cannot reach any more are not checked: those after
the fork of another timeline, and those that a power cut tore off. Entries before the oldest checkpoint may be missing. The run
may be written during the verification: a file that is retired while it is read is not a problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..base.errors import CorruptCatalog, UnknownFormat
from ..catalog import CATALOG_NAME, Catalog, Tables
from ..journal.ownership.writer_lock import read_owner
from ..recovery.journal_facts import CatalogContents, read_catalog, read_unlisted
from .checkpoint_checks import verify_checkpoints
from .findings import Checked, Finding, Problem
from .listing import add_unlisted
from .log_checks import verify_log
from .record_checks import verify_records


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
