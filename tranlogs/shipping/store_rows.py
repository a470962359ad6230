"""Rows of a journal's catalog about its store, which `status`, the monitor and recovery read instead of the store.

The rows are never ahead of the newest manifest in the store.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from dataclasses import replace
from pathlib import Path

from ..base.clock import Clock
from ..base.config import CATALOG_SECONDS
from ..base.errors import CorruptCatalog, LogUnavailable
from ..base.failpoints import hit
from ..catalog import (
    Catalog,
    Change,
    CommonRow,
    ReopeningCatalog,
    SegmentRow,
    StoreRow,
    Tables,
    TimelineRow,
)
from ..journal import JournalPaths, change_catalog
from .plan import JournalContents

_log = logging.getLogger(__name__)

_SEAL_LEASE_SECONDS = 60.0  # a request to seal lapses unless it is renewed

assert CATALOG_SECONDS < _SEAL_LEASE_SECONDS, "a trainer must see a request before it lapses"


class StoreRows:
    """Reads a journal's catalog, and writes its rows about the store at `url`. One thread calls it.

    Attributes:
        row: the store's row; None until it was read or written.
        marks: the watermarks `archived` and `persisted`.
    """

    def __init__(self, paths: JournalPaths, url: str, clock: Clock) -> None:
        self._folder: Path = paths.folder
        self.catalog = ReopeningCatalog(paths.folder)
        self._url, self._clock = url, clock
        self._location = f"{socket.gethostname()}:{os.path.realpath(paths.folder)}"
        self._sealing_until = 0.0
        self.row: StoreRow | None = None
        self.marks = (0, 0)

    def read_contents(self) -> JournalContents:
        """Return what the catalog lists now."""

        def read(tables: Tables) -> JournalContents:
            common = tables.get("common", CommonRow)
            return JournalContents(
                tables.rows("segment/", SegmentRow),
                tables.published_checkpoints(),
                tables.rows("timeline/", TimelineRow),
                1 if common is None else common.world,
            )

        found: JournalContents = self.catalog.current().read(read)
        return found

    def read_store(self, catalog: Catalog) -> StoreRow | None:
        """Return the row of this store; None if there is none.

        The row names a new writer if the folder was copied or moved since the row was written.
        """
        row: StoreRow | None = catalog.read(lambda tables: tables.get("store", StoreRow))
        if row is None or not self._is_of_this_store(row) or not row.writer:
            return None
        if row.host and row.host != self._location:
            row = replace(row, writer=secrets.token_hex(8))
        return replace(row, url=self._url)

    def begin(self, catalog: Catalog, row: StoreRow) -> None:
        """Write the store's row, because the journal was attached to the store.

        Raises:
            LogUnavailable: the trainer has not written it yet.
        """
        self.row = replace(row, problem="", host=self._location)
        if not change_catalog(self._folder, "store", Change({"store": self.row})):
            raise LogUnavailable(f"{catalog.path}: the process that writes the run does not serve requests now")

    def request_seals(self, age_seconds: float) -> None:
        """Request that the trainer seals segments of this age. The request lapses unless it is renewed."""
        now = self._clock.now()
        if now < self._sealing_until - _SEAL_LEASE_SECONDS / 2:
            return
        asked = {"age_seconds": age_seconds, "until": now + _SEAL_LEASE_SECONDS}
        if not change_catalog(self._folder, "seal", Change({"request/seal": asked})):
            return
        self._sealing_until = now + _SEAL_LEASE_SECONDS

    def write(self, row: StoreRow, marks: tuple[int, int], contents: JournalContents) -> None:
        """Write the store's row, and the watermarks `archived` and `persisted`.

        Nothing is written if the catalog has that already, or if its timelines are not those of `contents`.
        """
        if marks == self.marks and row == self.row:
            return
        hit("ship.marks")
        after = replace(row, at=self._clock.now())
        change = Change({"store": after}, timelines=[row.number for row in contents.timelines], marks=marks)
        if change_catalog(self._folder, "store", change):  # else the next turn computes the marks again
            self.row, self.marks = after, marks

    def write_problem(self, problem: str) -> None:
        """Write why shipping does not proceed; "" if it does."""
        try:
            if self.row is None or self.row.problem != problem:
                catalog = self.catalog.current()
                row = catalog.read(lambda tables: tables.get("store", StoreRow))
                if row is None or not self._is_of_this_store(row):
                    row = StoreRow(self._url, "", host=self._location)
                row = replace(row, problem=problem)
                if change_catalog(self._folder, "problem", Change({"store": row})):
                    self.row = row
        except (CorruptCatalog, LogUnavailable, OSError) as error:
            _log.debug("could not write the store's problem to the catalog: %s", error)

    def _is_of_this_store(self, row: StoreRow) -> bool:
        """Return True if a row is of this store: options in the address (?replication=2) do not make it another one."""
        return row.url.partition("?")[0] == self._url.partition("?")[0]
