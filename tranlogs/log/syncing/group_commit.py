"""The thread behind the log: it makes groups of records durable, seals segments, and writes watermarks.

A group is synced in this order: `fdatasync` of the segments that hold its records, then one transaction of the index, which
LMDB syncs itself. That commit is the commit point of `synced`. With durability="process" nothing waits for the disk: the
records are added to the index now and then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from ...base.clock import Clock
from ...base.config import CATALOG_SECONDS, GROUP_SECONDS
from ...base.failpoints import hit
from ...base.threads import WaitableLock, start
from ...catalog import Catalog
from ..index import IndexedRecord, LogIndex
from ..record import Position
from ..segments.segment_file import SegmentFile
from ..segments.segment_rows import record_opened, record_sealed, record_size
from .index_feed import IndexFeed
from .watermark_writer import WatermarkWriter

_Placed = tuple[SegmentFile, Position]  # a segment, and the position at which it was opened or sealed


class GroupCommit:
    """The state that the thread which logs and the thread behind it share. All fields are written under `lock`.

    It has more fields than most classes, because each of them is a message from one thread to the other.

    Args:
        catalog: the journal's, open for writing.
        index: of the log.
        clock: tells the time.
        position: where the chain continues.
        lock: of the log.
        syncs: False with durability="process".
        writes_watermarks: False if no watermark may be written yet.
        on_idle: called now and then, while nothing has to be synced.

    Attributes:
        syncs: True if what is committed is made durable.
        boundary: the newest committed boundary.
        synced: the newest boundary known to survive power loss.
        segment: the one that is being written; None if there is none.
        failure: what ended the thread; None while it runs.
        watermarks: the log's, in the catalog.
        feed: records on their way into the index.
    """

    def __init__(
        self,
        catalog: Catalog,
        index: LogIndex,
        clock: Clock,
        position: Position,
        lock: WaitableLock,
        *,
        syncs: bool,
        writes_watermarks: bool,
        on_idle: Callable[[], None],
    ) -> None:
        self._catalog, self._clock, self._lock, self._on_idle = catalog, clock, lock, on_idle
        self.feed = IndexFeed(index, catalog, clock)
        self.watermarks = WatermarkWriter(catalog, clock, is_enabled=writes_watermarks)
        self.syncs = syncs
        self.boundary = self.synced = position
        self.segment: SegmentFile | None = None
        self.failure: BaseException | None = None
        self._opened: list[_Placed] = []
        self._sealing: list[_Placed] = []
        self._is_stopped = self._is_waiting = False
        self._truncates = True
        self._synced_at = -GROUP_SECONDS
        self._is_awaited = False  # a thread waits for `synced`
        self._thread = threading.Thread(target=self._work, name="tranlogs-sync", daemon=True)

    def start(self) -> None:
        """Start the thread.

        Raises:
            LogUnavailable: the system cannot start a thread.
        """
        try:
            start(self._thread)
        except BaseException:  # refused, or Ctrl-C while the thread starts: nobody else will stop it
            self._stop()
            raise

    # Messages from the log.

    def opened(self, segment: SegmentFile, base: Position) -> None:
        """Note that records go into a segment from now on."""
        with self._lock:
            self.segment = segment
            self._opened.append((segment, base))
            self._lock.notify_all()

    def sealing(self, segment: SegmentFile, last: Position) -> None:
        """Note that nothing will be written to the open segment any more."""
        with self._lock:
            self._sealing.append((segment, last))
            self.segment = None
            self._lock.notify_all()

    def written(self, record: IndexedRecord) -> None:
        """Note that a record is in its segment. Called with the lock held."""
        self.feed.pending.append(record)

    def committed(self, boundary: Position) -> None:
        """Note that a unit is committed. Called with the lock held."""
        self.boundary = boundary
        if self.syncs and self._is_waiting:
            self._lock.notify_all()

    # Syncing.

    @property
    def must_sync(self) -> bool:
        """True if something is committed that has to survive power loss, and may not yet."""
        return self.syncs and self.synced.sequence < self.boundary.sequence

    def demand_sync(self) -> None:
        """Sync from now on, and what is committed already."""
        with self._lock:
            self.syncs = True
            self._lock.notify_all()

    def wait_synced(self, timeout: float) -> bool:
        """Wait until everything that is committed is synced; False after `timeout` seconds or a failure."""
        end = self._clock.monotonic() + timeout
        self._is_awaited = True
        try:
            while self.must_sync and self.failure is None:
                with self._lock:
                    self._lock.notify_all()
                    self._lock.wait(0.002)
                if self._clock.monotonic() > end:
                    return False
            return self.failure is None
        finally:
            self._is_awaited = False

    def stop(self, *, truncates: bool = True) -> None:
        """Finish the work that is left, and end the thread. What went wrong is in `failure`.

        Args:
            truncates: give back the unused part of the last segment.
        """
        self._truncates = truncates
        self._stop()
        self._thread.join()

    def _stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            self._lock.notify_all()

    def discard(self) -> None:
        """Close the files of segments that could not be sealed."""
        for segment, _ in self._sealing:
            with suppress(OSError):
                segment.close()

    # The thread.

    def _work(self) -> None:
        while True:
            with self._lock:
                self._wait_for_work()
                self._wait_for_group()
                opened, self._opened = self._opened, []
                sealing, self._sealing = self._sealing, []
                current, target, stopped, syncs = self.segment, self.boundary, self._is_stopped, self.syncs
                records: list[IndexedRecord] = []
                if syncs or sealing or stopped or self.feed.is_due(CATALOG_SECONDS):
                    records = self.feed.take()
            try:
                for segment, base in opened:
                    record_opened(self._catalog, segment, base)
                self._commit_group(sealing, records, current, target, syncs=syncs)
                self._record_group(sealing, target)
                self._on_idle()
                with self._lock:
                    self._lock.notify_all()
            except Exception as error:
                self.failure = self.failure or error
                for segment, _ in sealing:
                    segment.close()
                if not stopped:
                    self._wait_for_stop()
                return
            if stopped:
                return

    def _wait_for_work(self) -> None:
        """Wait until something has to be done, or for a while. Called with the lock held."""
        while not (self._is_stopped or self._sealing or self._opened or self.must_sync):
            self._is_waiting = True
            is_notified = self._lock.wait(CATALOG_SECONDS)
            self._is_waiting = False
            if not is_notified:
                break

    def _wait_for_group(self) -> None:
        """Wait for more records if the last group was made durable a moment ago. Called with the lock held."""
        left = self._synced_at + GROUP_SECONDS - self._clock.monotonic()
        if left > 0 and self.must_sync and not (self._is_stopped or self._sealing or self._opened or self._is_awaited):
            self._lock.wait(left)

    def _commit_group(
        self,
        sealing: list[_Placed],
        records: list[IndexedRecord],
        current: SegmentFile | None,
        target: Position,
        *,
        syncs: bool,
    ) -> None:
        """Make a group of records durable.

        Args:
            sealing: segments that are complete.
            records: the group.
            current: the open segment.
            target: the newest boundary when the group was taken.
            syncs: as it was then; `self.syncs` may have been set since.
        """
        if syncs:
            for segment, _ in sealing:
                segment.sync()
            if current is not None and records:
                current.sync()
        if records:
            self.feed.add(records)  # commit point of `synced`
        if syncs:
            self.synced, self._synced_at = target, self._clock.monotonic()

    def _record_group(self, sealing: list[_Placed], target: Position) -> None:
        """Bring the catalog up to date after a group: sealed segments, and watermarks now and then."""
        for segment, last in sealing:
            hit("log.seal")
            if self._is_stopped and self._truncates:
                record_size(self._catalog, segment, segment.used_bytes)
                segment.truncate()
            record_sealed(self._catalog, self._clock, segment, last)
        self.feed.forget_pruned(starts=bool(sealing))
        watermarks = self.watermarks
        if watermarks.is_due(self.boundary.step, CATALOG_SECONDS) or (watermarks.is_enabled and self._is_stopped):
            watermarks.write(target.step, self.synced.step if self.syncs else None)

    def _wait_for_stop(self) -> None:
        with self._lock:
            while not self._is_stopped:
                self._lock.wait()
