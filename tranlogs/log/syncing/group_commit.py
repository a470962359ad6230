"""Group commit: the sync thread makes groups of records durable, seals segments, and writes watermarks.

A group is synced in this order: `fdatasync` of the segments that hold its records, then one transaction of the index, which
LMDB syncs itself. That commit is the commit point of `synced`. With durability="process" nothing waits for the disk, and
the thread adds records to the index every few seconds.

While a foreign process holds LMDB's write lock, the thread waits, and `synced` lags. No other thread waits for it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from ...base.clock import Clock
from ...base.config import CATALOG_SECONDS, GROUP_SECONDS
from ...base.failpoints import hit
from ...base.threads import WaitableLock, start
from ...catalog import Catalog
from ..index import LogIndex
from ..segments.preallocator import RowChange
from ..segments.segment_rows import record_sealed, record_size
from .index_feed import IndexFeed
from .sync_state import SyncState, SyncWork
from .watermark_writer import WatermarkWriter


class GroupCommit:
    """The sync thread of a log.

    Args:
        catalog: the journal's catalog, open for writing.
        index: of the log.
        clock: the clock.
        lock: of the log.
        state: the state that the log and the thread share.
        writes_watermarks: False if no watermark may be written yet.
        on_idle: called after each group, and every few seconds while there is nothing to sync.
        demand_writer: called before each group is made durable; raises if this process must not write the journal any more.

    Attributes:
        state: the state that the log and the thread share.
        watermarks: writes the log's watermarks to the catalog.
        feed: adds records to the index.
    """

    def __init__(
        self,
        catalog: Catalog,
        index: LogIndex,
        clock: Clock,
        lock: WaitableLock,
        state: SyncState,
        *,
        writes_watermarks: bool,
        on_idle: Callable[[], None],
        demand_writer: Callable[[], None],
    ) -> None:
        self._catalog, self._clock, self._lock, self._on_idle = catalog, clock, lock, on_idle
        self._demand_writer = demand_writer
        self.state = state
        self.feed = IndexFeed(index, catalog, clock)
        self.watermarks = WatermarkWriter(catalog, clock, self._is_patient, is_enabled=writes_watermarks)
        self._synced_at = -GROUP_SECONDS
        self._thread = threading.Thread(target=self._work, name="tranlogs-sync", daemon=True)

    def start(self) -> None:
        """Start the thread.

        Raises:
            LogUnavailable: the system cannot start a thread.
        """
        try:
            start(self._thread)
        except BaseException:  # The start failed, or Ctrl-C came during it: no owner will stop the thread later.
            self.state.stop()
            raise

    def stop(self, *, truncates: bool = True) -> None:
        """Finish the work that is left, and end the thread. An error is in `state.failure`.

        Args:
            truncates: give back the unused part of the last segment.
        """
        self.state.stop(truncates=truncates)
        self._thread.join()

    def demand_sync(self, folder: Path) -> None:
        """Make committed and later records survive power loss, even with durability="process".

        Args:
            folder: of the segment files.

        Raises:
            OSError: the disk fails.
        """
        with self._lock:  # Nothing may be committed between the flush of all files and the first group that is synced.
            if self.state.syncs:
                return
            for path in folder.glob("*.seg"):
                with suppress(FileNotFoundError):  # The file was recycled in the meantime.
                    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    try:
                        os.fdatasync(fd)
                    finally:
                        os.close(fd)
            self.state.syncs = True
            self._lock.notify_all()

    # The thread.

    def _work(self) -> None:
        while True:
            with self._lock:
                self._wait_for_work()
                self._wait_for_group()
                work = self.state.take_work(with_records=self.feed.is_late(CATALOG_SECONDS))
            try:
                self._write_changes(work.changes)
                self._commit_group(work)
                self._update_catalog(work)
                self._on_idle()
                with self._lock:
                    self._lock.notify_all()
            except Exception as error:
                self.state.failure = self.state.failure or error
                for segment, _ in work.sealing:
                    segment.close()
                if not work.is_last:
                    self._wait_for_stop()
                return
            if work.is_last:
                return

    def _wait_for_work(self) -> None:
        """Wait until there is work, for some seconds at most. Called with the lock held."""
        state = self.state
        while not (state.has_urgent_work or state.must_sync):
            state.is_waiting = True
            is_notified = self._lock.wait(CATALOG_SECONDS)
            state.is_waiting = False
            if not is_notified:
                break

    def _wait_for_group(self) -> None:
        """Wait for more records if the last group was made durable a moment ago. Called with the lock held."""
        state = self.state
        left = self._synced_at + GROUP_SECONDS - self._clock.monotonic()
        if left > 0 and state.must_sync and not (state.has_urgent_work or state.is_awaited):
            self._lock.wait(left)

    def _commit_group(self, work: SyncWork) -> None:
        """Make a group of records durable."""
        if work.syncs:
            for segment, _ in work.sealing:
                segment.sync()
            if work.segment is not None and work.records:
                work.segment.sync()
        self._demand_writer()  # also without records: a deleted lock file is made again while training pauses
        if work.records:
            self.feed.add(work.records)  # commit point of `synced`
        if work.syncs:
            self.state.synced, self._synced_at = work.boundary, self._clock.monotonic()

    def _update_catalog(self, work: SyncWork) -> None:
        """Record sealed segments in the catalog after a group, and watermarks if they are due."""
        state = self.state
        for segment, last in work.sealing:
            hit("log.seal")
            if state.is_stopped and state.truncates:
                self._write_changes([partial(record_size, segment=segment, size=segment.used_bytes)])
                segment.truncate()
            segment.close()
            self._write_changes([partial(record_sealed, clock=self._clock, segment=segment, last=last)])
        self.feed.delete_pruned(starts=bool(work.sealing))
        watermarks = self.watermarks
        if watermarks.is_due(state.boundary.step, CATALOG_SECONDS) or (watermarks.is_enabled and state.is_stopped):
            watermarks.write(work.boundary.step, state.synced.step if state.syncs else None)

    def _write_changes(self, changes: list[RowChange]) -> None:
        if changes:
            with self._catalog.transaction(self._is_patient) as tables:
                for change in changes:
                    change(tables)

    def _is_patient(self) -> bool:
        """Return True as long as this thread can wait for a process that holds LMDB's write lock."""
        return not self.state.is_stopped

    def _wait_for_stop(self) -> None:
        with self._lock:
            while not self.state.is_stopped:
                self._lock.wait()
