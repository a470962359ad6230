"""The records on their way into the log's index."""

from __future__ import annotations

from ...base.clock import Clock
from ...catalog import Catalog
from ..index import IndexedRecord, LogIndex


class IndexFeed:
    """Adds records to the index in groups, and deletes from it what was pruned.

    Attributes:
        pending: records that are in their segment but not in the index. Changed under the lock of the log.
    """

    def __init__(self, index: LogIndex, catalog: Catalog, clock: Clock) -> None:
        self._index: LogIndex | None = index
        self._catalog, self._clock = catalog, clock
        self.pending: list[IndexedRecord] = []
        self._added_at = clock.monotonic()
        self._is_tidy = True

    def is_due(self, seconds: float) -> bool:
        """Return True if records have been pending for some seconds. Called with the lock held."""
        return bool(self.pending) and self._clock.monotonic() - self._added_at > seconds

    def take(self) -> list[IndexedRecord]:
        """Return the pending records, which are pending no longer. Called with the lock held."""
        taken, self.pending = self.pending, []
        return taken

    def add(self, records: list[IndexedRecord]) -> None:
        """Add records in one transaction, which is durable when this returns.

        Raises:
            LogUnavailable: the disk is full or fails.
        """
        assert self._index is not None
        self._index.add(records)
        self._added_at = self._clock.monotonic()

    def forget_pruned(self, *, starts: bool) -> None:
        """Delete records of segments that were pruned, a few at a time, so that nothing waits for it.

        Args:
            starts: begin anew, because a segment was sealed; otherwise only finish what was begun.

        Raises:
            LogUnavailable: the disk is full or fails.
        """
        if starts or not self._is_tidy:
            kept = [row.number for row in self._catalog.segments() if row.state != "retired"]
            assert self._index is not None
            self._is_tidy = self._index.forget_all_but(kept)

    def close(self) -> None:
        """Close the index, once."""
        index, self._index = self._index, None
        if index is not None:
            index.close()
