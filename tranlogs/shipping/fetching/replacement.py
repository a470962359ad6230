"""Sound copies of what is damaged in a journal: from the store that it is shipped to."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

from ...base.errors import CorruptCatalog, StoreUnavailable, TranLogsError, error_text
from ...catalog import Catalog, CheckpointRow, RunRow, SegmentRow, StoreRow, Tables
from ...journal import JournalPaths
from ...stores import STALL_SECONDS, PatientStore, open_store
from ..inventory.manifest import Manifest, Shipped, place_of, read_newest
from .fetch import fetch_item

_log = logging.getLogger("tranlogs")

_PAUSES = (1.0, 4.0, 0.0)  # seconds after a failed attempt


class Spare:
    """The copies of one journal. The store is first asked when something is damaged.

    Args:
        paths: the journal's.
        url: of the store; None for the one that the catalog names, if there is one.
    """

    def __init__(self, paths: JournalPaths, url: str | None = None) -> None:
        self._paths, self._url = paths, url
        self._manifest: Manifest | None = None
        self._is_given_up = False
        self._asked: set[str] = set()  # names of segments and checkpoints

    def replace(self, name: str) -> str:
        """Put the store's copy of a segment (named by its file) or a checkpoint (by its folder) in its place.

        Nothing is raised: a store that does not help is a warning, and recovery goes on without it. A name is asked for once.

        Returns:
            Where it came from, in words; "" if there is none, or if the file is what was sent.
        """
        if name in self._asked or self._is_given_up:
            return ""
        self._asked.add(name)
        known = _Known.of(self._paths.folder)
        self._url = self._url or known.url
        if self._url is None:
            return ""
        for pause in _PAUSES:
            try:
                return self._replace(name, known)
            except (StoreUnavailable, OSError) as error:
                _log.warning(
                    "%s: no copy of %s can be had from %s now: %s", self._paths.folder, name, self._url, error_text(error)
                )
                time.sleep(pause)
            except TranLogsError as error:
                _log.warning("%s: no copy of %s can be had from %s: %s", self._paths.folder, name, self._url, error_text(error))
                return ""
        self._is_given_up = True  # for all that is damaged: recovery must come to an end
        return ""

    def _replace(self, name: str, known: _Known) -> str:
        assert self._url is not None
        with PatientStore(open_store(self._url), STALL_SECONDS) as store:
            if self._manifest is None:
                self._manifest, _ = read_newest(store, place_of(self._paths))
            one = None if self._manifest is None else self._manifest.shipped.get(name)
            if one is None or self._manifest is None:
                _log.warning("%s: the store %s has no copy of %s", self._paths.folder, store.url, name)
                return ""
            if not known.is_same(self._manifest, one):
                _log.warning(
                    "%s: what the store %s has as %s is of another run, or of another past of this one",
                    self._paths.folder,
                    store.url,
                    name,
                )
                return ""
            if not fetch_item(store, one, self._paths.folder, is_allocated=True):
                return ""
            _log.warning("%s: %s was damaged, and replaced by the copy in %s", self._paths.folder, name, store.url)
            return f"the store {store.url}"


@dataclass(frozen=True, slots=True)
class _Known:
    """What the journal's catalog says: of its run, its store, its segments and checkpoints by name."""

    run: RunRow | None = None
    url: str | None = None
    rows: dict[str, SegmentRow | CheckpointRow] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> _Known:
        """An empty one where it cannot be read."""

        def look(tables: Tables) -> _Known:
            store = tables.get("store", StoreRow)
            rows: dict[str, SegmentRow | CheckpointRow] = {row.file: row for row in tables.rows("segment/", SegmentRow)}
            rows |= {row.name: row for row in tables.rows("checkpoint/", CheckpointRow)}
            return cls(tables.get("run", RunRow), store.url if store is not None else None, rows)

        try:
            catalog = Catalog.open(folder)
        except CorruptCatalog:
            return cls()
        try:
            found: _Known = catalog.read(look)
            return found
        except CorruptCatalog:
            return cls()
        finally:
            catalog.close()

    def is_same(self, manifest: Manifest, one: Shipped) -> bool:
        """Whether an item of the store is what this journal lists, or goes further: a copy of the folder has other ends."""
        if self.run is None or manifest.run.run_id != self.run.run_id:
            return False
        mine, theirs = self.rows.get(one.objects.name), one.row
        if isinstance(mine, SegmentRow) and isinstance(theirs, SegmentRow):
            is_at_least = theirs.last_sequence >= mine.last_sequence
            return (mine.segment_id, mine.base_sequence) == (theirs.segment_id, theirs.base_sequence) and is_at_least
        if isinstance(mine, CheckpointRow) and isinstance(theirs, CheckpointRow):
            return (mine.sequence, mine.chain, mine.timeline) == (theirs.sequence, theirs.chain, theirs.timeline)
        return False
