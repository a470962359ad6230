"""Catalog for long-lived readers: opened again when its file, or LMDB's lock file, was replaced."""

from __future__ import annotations

import os
from pathlib import Path

from .catalog import CATALOG_NAME, Catalog


class ReopeningCatalog:
    """The catalog of a journal, in whichever file it is now. Only one thread may use it.

    Args:
        folder: the folder of the journal.

    Attributes:
        open_count: the number of files that were opened so far. It changes when the catalog was replaced.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._catalog: Catalog | None = None
        self._inode = 0
        self.open_count = 0

    def current(self) -> Catalog:
        """Return the catalog, opened again if its file was replaced.

        Raises:
            CorruptCatalog, LogUnavailable: the catalog cannot be opened now.
            OSError: the journal has no catalog.
        """
        inode = os.stat(self._folder / CATALOG_NAME).st_ino
        if self._catalog is not None and (inode != self._inode or self._catalog.has_lost_lock_file()):
            self.close()
        if self._catalog is None:
            self._catalog, self._inode = Catalog.open(self._folder), inode
            self.open_count += 1
        return self._catalog

    def close(self) -> None:
        """Close the catalog. `current` opens it again."""
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None
