"""`tranlogs verify --repair`: a damaged catalog is rebuilt, and damaged files are replaced by the store's copies."""

from __future__ import annotations

from pathlib import Path

from ...base.errors import CorruptCatalog
from ...catalog import Catalog, Tables
from ...journal import JournalPaths
from ...journal.ownership.writer_lock import OwnerLock
from ...rebuild_catalog import rebuild_catalog
from ...shipping import StoreCopies
from ...verify import Problem, verify_journal


def repair_journal(paths: JournalPaths, url: str | None) -> list[str]:
    """Repair a journal that nobody writes. Return what was done, a sentence each.

    Args:
        paths: of the journal.
        url: store with intact copies; None for the one to which the journal is shipped.

    Raises:
        RunInUse: a process writes the journal.
    """
    lock = OwnerLock(paths.folder)
    try:
        done = [] if _is_catalog_intact(paths.folder) else rebuild_catalog(paths.folder)
        problems = [finding for finding in verify_journal(paths.folder) if isinstance(finding, Problem)]
        copies = StoreCopies(paths, url)
        for part in dict.fromkeys(part for problem in problems if (part := _part_of(paths, problem))):
            if source := copies.replace(part.name):
                done.append(f"{part.name} was damaged, and was replaced by the copy in {source}")
            elif not part.exists():  # somebody deleted it
                done += rebuild_catalog(paths.folder)
        return done
    finally:
        lock.release()


def _part_of(paths: JournalPaths, problem: Problem) -> Path | None:
    """Return the segment or checkpoint that a problem is of; None if it is of the catalog."""
    parts = problem.path.relative_to(paths.folder).parts  # log/FILE, checkpoints/NAME/FILE
    return paths.folder / parts[0] / parts[1] if len(parts) > 1 else None


def _is_catalog_intact(folder: Path) -> bool:
    """Return True if every row of the catalog can be read."""
    try:
        catalog = Catalog.open(folder)
        try:
            catalog.read(Tables.check)
            return catalog.run() is not None
        finally:
            catalog.close()
    except CorruptCatalog:
        return False
