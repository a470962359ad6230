"""The connection from the sync thread to the log's index."""

from __future__ import annotations

from ...base.clock import Clock
from ...catalog import Catalog
from ..index import IndexedRecord, LogIndex


class IndexFeed:
    """Adds groups of records to the index, and deletes records of pruned segments from it."""

    def __init__(self, index: LogIndex, catalog: Catalog, clock: Clock) -> None:
        self._index: LogIndex | None = index
        self._catalog, self._clock = catalog, clock
        self._added_at = clock.monotonic()
        self._is_tidy = True

    def is_late(self, seconds: float) -> bool:
        """Return True if the last group was added more than some seconds ago."""
        return self._clock.monotonic() - self._added_at > seconds

    def add(self, records: list[IndexedRecord]) -> None:
        """Add records in one transaction, which is durable when this returns.

        Raises:
            LogUnavailable: the disk is full or fails.
        """
        assert self._index is not None
        self._index.add(records)
        self._added_at = self._clock.monotonic()

    def delete_pruned(self, *, starts: bool) -> None:
        """Delete records of pruned segments from the index. One call deletes a few hundred, so that no group waits long.

        Args:
            starts: begin a new pass because a segment was sealed; otherwise only continue an unfinished pass.

        Raises:
            LogUnavailable: the disk is full or fails.
        """
        if starts or not self._is_tidy:
            kept = [row.number for row in self._catalog.segments() if row.state != "retired"]
            assert self._index is not None
            self._is_tidy = self._index.delete_all_but(kept)

    def close(self) -> None:
        """Close the index, once."""
        index, self._index = self._index, None
        if index is not None:
            index.close()
