"""Replacement of damaged segments and checkpoints by the copies in the store that the journal is shipped to."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

from ...base.errors import CorruptCatalog, StoreUnavailable, TranLogsError, error_text
from ...catalog import Catalog, CheckpointRow, RunRow, SegmentRow, StoreRow, Tables
from ...journal import JournalPaths
from ...stores import STALL_SECONDS, TimeoutStore, open_store
from ..manifest import Manifest, ShippedItem, journal_prefix, read_newest
from .item_download import fetch_item

_log = logging.getLogger("tranlogs")

_PAUSES = (1.0, 4.0, 0.0)  # seconds after a failed attempt


class StoreCopies:
    """The store's copies of one journal's files. The store is opened when a file is found to be damaged.

    Args:
        paths: the journal's.
        url: address of the store; None for the store that the catalog names, if it names one.
    """

    def __init__(self, paths: JournalPaths, url: str | None = None) -> None:
        self._paths, self._url = paths, url
        self._manifest: Manifest | None = None
        self._is_given_up = False
        self._asked: set[str] = set()  # names of segments and checkpoints

    def replace(self, name: str) -> str:
        """Replace a damaged segment (named by its file) or checkpoint (named by its folder) by the store's copy.

        No error is raised: recovery continues without the store, and a warning is logged. Each name is tried once.

        Returns:
            The source of the copy, in words; "" if there is no copy, or if the file is intact.
        """
        if name in self._asked or self._is_given_up:
            return ""
        self._asked.add(name)
        known = _JournalRecord.read(self._paths.folder)
        self._url = self._url or known.url
        if self._url is None:
            return ""
        for pause in _PAUSES:
            try:
                return self._replace(name, known)
            except (StoreUnavailable, OSError) as error:
                _log.warning(
                    "%s: cannot fetch a copy of %s from %s now: %s", self._paths.folder, name, self._url, error_text(error)
                )
                time.sleep(pause)
            except TranLogsError as error:
                _log.warning(
                    "%s: cannot fetch a copy of %s from %s: %s", self._paths.folder, name, self._url, error_text(error)
                )
                return ""
        self._is_given_up = True  # For all damaged files: recovery must not wait for each of them.
        return ""

    def _replace(self, name: str, known: _JournalRecord) -> str:
        assert self._url is not None
        with TimeoutStore(open_store(self._url), STALL_SECONDS) as store:
            if self._manifest is None:
                self._manifest, _ = read_newest(store, journal_prefix(self._paths))
            item = None if self._manifest is None else self._manifest.shipped.get(name)
            if item is None or self._manifest is None:
                _log.warning("%s: the store %s has no copy of %s", self._paths.folder, store.url, name)
                return ""
            if not known.matches(self._manifest, item):
                _log.warning(
                    "%s: the store %s holds %s of another run, or of another history of this run; not used",
                    self._paths.folder,
                    store.url,
                    name,
                )
                return ""
            if not fetch_item(store, item, self._paths.folder, is_preallocated=True):
                return ""
            _log.warning("%s: %s was damaged, and was replaced by the copy in %s", self._paths.folder, name, store.url)
            return f"the store {store.url}"


@dataclass(frozen=True, slots=True)
class _JournalRecord:
    """Rows of the journal's catalog: the run, the store's address, and segments and checkpoints by name."""

    run: RunRow | None = None
    url: str | None = None
    rows: dict[str, SegmentRow | CheckpointRow] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> _JournalRecord:
        """Read the catalog; return an empty record if it is damaged."""

        def read_rows(tables: Tables) -> _JournalRecord:
            store = tables.get("store", StoreRow)
            rows: dict[str, SegmentRow | CheckpointRow] = {row.file: row for row in tables.rows("segment/", SegmentRow)}
            rows |= {row.name: row for row in tables.rows("checkpoint/", CheckpointRow)}
            return cls(tables.get("run", RunRow), store.url if store is not None else None, rows)

        try:
            catalog = Catalog.open(folder)
        except CorruptCatalog:
            return cls()
        try:
            found: _JournalRecord = catalog.read(read_rows)
            return found
        except CorruptCatalog:
            return cls()
        finally:
            catalog.close()

    def matches(self, manifest: Manifest, item: ShippedItem) -> bool:
        """Return True if an item of the store is the one that this journal lists, or a longer version of it.

        A copy of the run's folder that was trained on has other items under the same names.
        """
        if self.run is None or manifest.run.run_id != self.run.run_id:
            return False
        local, stored = self.rows.get(item.objects.name), item.row
        if isinstance(local, SegmentRow) and isinstance(stored, SegmentRow):
            is_at_least = stored.last_sequence >= local.last_sequence
            return (local.segment_id, local.base_sequence) == (stored.segment_id, stored.base_sequence) and is_at_least
        if isinstance(local, CheckpointRow) and isinstance(stored, CheckpointRow):
            return (local.sequence, local.chain, local.timeline) == (stored.sequence, stored.chain, stored.timeline)
        return False
