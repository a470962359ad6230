"""Sound copies of what is damaged in a journal: from the store that it is shipped to."""

from __future__ import annotations

import logging
from pathlib import Path

from ..catalog import Catalog, RunRow, StoreRow, Tables
from ..errors import CorruptCatalog, TranLogsError, in_words
from ..journal import JournalPaths
from ..store import PatientStore, open_store
from .fetch import fetch_item
from .manifest import Manifest, place_of, read_newest

_log = logging.getLogger("tranlogs")

_STALL_SECONDS = 60.0


class Spare:
    """The copies of one journal. The store is first asked when something is damaged.

    Args:
        paths: the journal's.
        url: of the store; None for the one that the catalog names, if there is one.
    """

    def __init__(self, paths: JournalPaths, url: str | None = None) -> None:
        self._paths, self._url = paths, url
        self._manifest: Manifest | None = None
        self._has_asked = False
        self._asked: set[str] = set()  # names of segments and checkpoints

    def replace(self, name: str) -> str:
        """Put the store's copy of a segment (named by its file) or a checkpoint (by its folder) in its place.

        Nothing is raised: a store that does not help is a warning, and recovery goes on without it. A name is asked for once.

        Returns:
            Where it came from, in words; "" if there is none, or if the file is what was sent.
        """
        if name in self._asked:
            return ""
        self._asked.add(name)
        try:
            self._ask()
            if self._url is None:
                return ""
            if self._manifest is None or name not in self._manifest.shipped:
                _log.warning("%s: the store %s has no copy of %s", self._paths.folder, self._url, name)
                return ""
            with PatientStore(open_store(self._url), _STALL_SECONDS) as store:
                if not fetch_item(store, self._manifest.shipped[name], self._paths.folder, is_allocated=True):
                    return ""
                _log.warning(
                    "%s: %s was damaged, and replaced by the copy in the store %s", self._paths.folder, name, store.url
                )
                return f"the store {store.url}"
        except (TranLogsError, OSError) as error:
            _log.warning("%s: no copy of %s can be had from %s: %s", self._paths.folder, name, self._url, in_words(error))
            return ""

    def _ask(self) -> None:
        """What the store has of this run, once."""
        if self._has_asked:
            return
        self._has_asked = True
        run, named = _catalog_says(self._paths.folder)
        self._url = self._url or named
        if self._url is None:
            return
        with PatientStore(open_store(self._url), _STALL_SECONDS) as store:
            found, _ = read_newest(store, place_of(self._paths))
        if found is not None and run is not None and found.run.run_id != run.run_id:
            _log.warning("%s: what the store %s has under this name is another run", self._paths.folder, self._url)
        else:
            self._manifest = found


def _catalog_says(folder: Path) -> tuple[RunRow | None, str | None]:
    """The run, and the address of its store."""

    def look(tables: Tables) -> tuple[RunRow | None, str | None]:
        store = tables.get("store", StoreRow)
        return tables.get("run", RunRow), store.url if store is not None else None

    try:
        catalog = Catalog.open(folder)
    except CorruptCatalog:
        return None, None
    try:
        found: tuple[RunRow | None, str | None] = catalog.read(look)
        return found
    except CorruptCatalog:
        return None, None
    finally:
        catalog.close()
