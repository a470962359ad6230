"""The thread behind the log: it makes groups of records durable, seals segments, and writes watermarks.

A group is synced in this order: `fdatasync` of the segments that hold its records, then one transaction of the index, which
LMDB syncs itself. That commit is the commit point of `synced`. With durability="process" nothing waits for the disk: the
records are added to the index now and then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from ..base.clock import Clock
from ..base.config import CATALOG_SECONDS, GROUP_SECONDS
from ..base.failpoints import hit
from ..base.threads import WaitableLock, start
from ..catalog import Catalog, SegmentRow, Watermarks, segment_key
from .index import IndexedRecord, LogIndex
from .record import Position
from .segments.segment_file import SegmentFile


class GroupCommit:
    """See the module. All fields are written under `lock`, which the log shares.

    Args:
        catalog: the journal's, open for writing.
        index: of the log.
        clock: for times in the catalog.
        position: where the chain goes on.
        lock: of the log.
        syncs: False with durability="process".
        counts: False where no watermark is to be written yet.
        on_sealed: called after a segment is sealed in the catalog.
        on_idle: called now and then, while nothing has to be synced.

    Attributes:
        boundary: the newest committed boundary.
        synced: the newest boundary known to survive power loss.
        segment: that is being written, if one is.
        failure: what ended the thread.
    """

    def __init__(self, catalog: Catalog, index: LogIndex, clock: Clock, position: Position, lock: WaitableLock, *, syncs: bool,
                 counts: bool, on_sealed: Callable[[], None], on_idle: Callable[[], None]) -> None:  # fmt: skip
        self._catalog, self._index, self._clock, self._lock = catalog, index, clock, lock
        self._on_sealed, self._on_idle = on_sealed, on_idle
        self.syncs, self.counts = syncs, counts
        self.boundary = self.synced = position
        self.segment: SegmentFile | None = None
        self.failure: BaseException | None = None
        self._opened: list[tuple[SegmentFile, Position]] = []
        self._sealing: list[tuple[SegmentFile, Position]] = []
        self._records: list[IndexedRecord] = []  # that the index does not have
        self._is_stopped = self._is_waiting = False
        self._is_index_tidy = self._truncates = True
        self._catalog_at, self._catalog_step, self._indexed_at = 0.0, -1, clock.monotonic()
        self._synced_at = -GROUP_SECONDS
        self._is_hurried = False  # somebody waits for `synced`
        self._thread = threading.Thread(target=self._work, name="tranlogs-sync", daemon=True)

    def start(self) -> None:
        """Start the thread.

        Raises:
            LogUnavailable: the system gives none.
        """
        try:
            start(self._thread)
        except BaseException:  # refused, or Ctrl-C while it waits for the thread: nobody will stop it
            self._stop()
            raise

    # What happened in the log.

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
        self._records.append(record)

    def committed(self, boundary: Position) -> None:
        """Note that a unit is committed. Called with the lock held."""
        self.boundary = boundary
        if self.syncs and self._is_waiting:
            self._lock.notify_all()

    # Syncing.

    @property
    def must_sync(self) -> bool:
        """Whether something is committed that may not survive power loss, and should."""
        return self.syncs and self.synced.sequence < self.boundary.sequence

    def demand_sync(self) -> None:
        """Sync from now on, and what is committed already."""
        with self._lock:
            self.syncs = True
            self._lock.notify_all()

    def wait_synced(self, timeout: float) -> bool:
        """Wait until everything committed is synced; False after `timeout` seconds or a failure."""
        end = self._clock.monotonic() + timeout
        self._is_hurried = True
        try:
            while self.must_sync and self.failure is None:
                with self._lock:
                    self._lock.notify_all()
                    self._lock.wait(0.002)
                if self._clock.monotonic() > end:
                    return False
            return self.failure is None
        finally:
            self._is_hurried = False

    def stop(self, *, truncates: bool = True) -> None:
        """Finish what there is to do, and end the thread; what went wrong is in `failure`.

        Args:
            truncates: give back what the last segment does not need.
        """
        self._truncates = truncates
        self._stop()
        self._thread.join()

    def _stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            self._lock.notify_all()

    # The thread.

    def _work(self) -> None:
        while True:
            with self._lock:
                while not (self._is_stopped or self._sealing or self._opened or self.must_sync):
                    self._is_waiting = True
                    is_notified = self._lock.wait(CATALOG_SECONDS)
                    self._is_waiting = False
                    if not is_notified:
                        break
                self._let_grow()
                opened, self._opened = self._opened, []
                sealing, self._sealing = self._sealing, []
                current, target, stopped, syncs = self.segment, self.boundary, self._is_stopped, self.syncs
                records: list[IndexedRecord] = []
                if syncs or sealing or stopped or self._is_index_due():
                    records, self._records = self._records, []
            try:
                self._settle(opened, sealing, records, current, target, syncs=syncs)
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

    def _let_grow(self) -> None:
        """Wait for more records where the last group was made durable a moment ago. Called with the lock held."""
        left = self._synced_at + GROUP_SECONDS - self._clock.monotonic()
        if left > 0 and self.must_sync and not (self._is_stopped or self._sealing or self._opened or self._is_hurried):
            self._lock.wait(left)

    def _settle(self, opened: list[tuple[SegmentFile, Position]], sealing: list[tuple[SegmentFile, Position]],
                records: list[IndexedRecord], current: SegmentFile | None, target: Position, *,
                syncs: bool) -> None:  # fmt: skip
        """Do what there was to do when `target` was the newest boundary. (`self.syncs` may have been set since.)"""
        for segment, base in opened:
            self._record_opened(segment, base)
        if syncs:
            for segment, _ in sealing:
                segment.sync()
            if current is not None and records:
                current.sync()
        if records:
            self._index.add(records)  # commit point of `synced`
            self._indexed_at = self._clock.monotonic()
        if syncs:
            self.synced, self._synced_at = target, self._clock.monotonic()
        for segment, last in sealing:
            self._record_sealed(segment, last)
        if sealing:
            self._on_sealed()
        if sealing or not self._is_index_tidy:  # a few records at a time, so that nothing waits for it
            kept = [row.number for row in self._catalog.segments() if row.state != "retired"]
            self._is_index_tidy = self._index.forget_all_but(kept)
        if self._is_catalog_due() or (self.counts and self._is_stopped):
            self._write_watermarks(target)

    def _is_catalog_due(self) -> bool:
        late = self._clock.monotonic() - self._catalog_at > CATALOG_SECONDS
        return self.counts and late and self._catalog_step < self.boundary.step

    def _is_index_due(self) -> bool:
        return bool(self._records) and self._clock.monotonic() - self._indexed_at > CATALOG_SECONDS

    def _write_watermarks(self, target: Position) -> None:
        self._catalog_at, self._catalog_step = self._clock.monotonic(), target.step
        with self._catalog.transaction() as tables:
            now = tables.get("watermarks", Watermarks) or Watermarks()
            synced = self.synced.step if self.syncs else now.synced
            tables.put("watermarks", replace(now, committed=target.step, synced=min(synced, target.step), at=self._clock.now()))

    def _record_opened(self, segment: SegmentFile, base: Position) -> None:
        with self._catalog.transaction() as tables:
            row = tables.get(segment_key(segment.ordinal), SegmentRow)
            assert row is not None
            row = replace(row, state="open", timeline=base.timeline, base_sequence=base.sequence, base_step=base.step)
            tables.put(segment_key(segment.ordinal), row)

    def _record_sealed(self, segment: SegmentFile, last: Position) -> None:
        hit("log.seal")
        if self._is_stopped and self._truncates:
            segment.truncate()
        used, size = segment.used_bytes, segment.size
        segment.close()  # first: once the catalog says "sealed", the file may be retired and reused by other threads
        with self._catalog.transaction() as tables:
            row = tables.get(segment_key(segment.ordinal), SegmentRow)
            assert row is not None
            row = replace(row, state="sealed", last_sequence=last.sequence, last_step=last.step, used_bytes=used, size=size,
                          sealed_at=self._clock.now())  # fmt: skip
            tables.put(segment_key(segment.ordinal), row)

    def _wait_for_stop(self) -> None:
        with self._lock:
            while not self._is_stopped:
                self._lock.wait()

    def discard(self) -> None:
        """Close the files of segments that could not be sealed."""
        for segment, _ in self._sealing:
            with suppress(OSError):
                segment.close()
