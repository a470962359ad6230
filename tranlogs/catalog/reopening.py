"""A catalog that is used for months: opened anew where a trainer has put another file in its place."""

from __future__ import annotations

import os
from pathlib import Path

from .catalog import CATALOG_NAME, Catalog


class FollowedCatalog:
    """The catalog of a journal, whichever file it is now. One thread calls it.

    Attributes:
        opened: how many files it has been so far.
    """

    def __init__(self, folder: Path, *, writable: bool) -> None:
        self._folder, self._writable = folder, writable
        self._catalog: Catalog | None = None
        self._inode = 0
        self.opened = 0

    def current(self) -> Catalog:
        """The catalog.

        Raises:
            CorruptCatalog, LogUnavailable: it cannot be opened now.
            OSError: there is none.
        """
        inode = os.stat(self._folder / CATALOG_NAME).st_ino
        if self._catalog is not None and inode != self._inode:
            self.close()
        if self._catalog is None:
            self._catalog, self._inode = Catalog.open(self._folder, writable=self._writable), inode
            self.opened += 1
        return self._catalog

    def close(self) -> None:
        """Let go of it."""
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None
