"""Group commit: the sync thread makes groups of records durable, seals segments, and writes watermarks.

A group is synced in this order: `fdatasync` of the segments that hold its records, then one transaction with its records, the
rows of segments and the watermarks, which LMDB syncs itself. That commit is the commit point of `synced`. With
durability="process" nothing waits for the disk, and the thread writes the records twice a second.

While a foreign process holds LMDB's write lock, the thread waits, and `synced` lags. No other thread waits for it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ..base.clock import Clock
from ..base.config import CATALOG_SECONDS, GROUP_SECONDS, SWEEP_SECONDS
from ..base.failpoints import hit
from ..base.threads import WaitableLock, start
from ..catalog import Catalog, Tables, Watermarks
from .preallocator import RowChange
from .record_format import Position
from .record_rows import RecordRow, add_records, sweep_records
from .segment_file import SegmentFile, record_opened, record_sealed, record_size

SealedSegment = tuple[SegmentFile, Position]  # a complete segment, and the position after its last record


@dataclass(slots=True)
class SyncWork:
    """Work that the sync thread takes at once.

    Attributes:
        changes: of segment rows, in order.
        sealing: segments that are complete and have to be sealed.
        records: the group to commit; empty if the records can wait.
        segment: the open segment; None if there is none.
        boundary: the newest committed boundary.
        syncs: True if the group has to survive power loss.
        is_last: True if the log is being closed.
    """

    changes: list[RowChange]
    sealing: list[SealedSegment]
    segment: SegmentFile | None
    boundary: Position
    syncs: bool
    is_last: bool
    records: list[RecordRow] = field(default_factory=list)


class SyncState:
    """State shared by the thread that logs and the sync thread. All fields are written under the log's lock.

    Args:
        lock: of the log.
        clock: the clock.
        position: where the chain of records continues.
        syncs: False with durability="process".

    Attributes:
        syncs: True if committed records are made durable.
        boundary: the newest committed boundary.
        synced: the newest boundary known to survive power loss.
        segment: the open segment; None if there is none.
        records: records that are in their segment but not in the catalog.
        failure: the error that ended the sync thread; None while it runs.
        is_stopped: True once the log is being closed.
        truncates: True if closing gives back the unused part of the last segment.
        is_waiting: True while the sync thread waits for work.
        is_awaited: True while a thread waits for `synced`.
    """

    def __init__(self, lock: WaitableLock, clock: Clock, position: Position, *, syncs: bool) -> None:
        self._lock, self._clock = lock, clock
        self.syncs = syncs
        self.boundary = self.synced = position
        self.segment: SegmentFile | None = None
        self.records: list[RecordRow] = []
        self.failure: BaseException | None = None
        self.is_stopped = self.is_waiting = self.is_awaited = False
        self.truncates = True
        self._changes: list[RowChange] = []
        self._sealing: list[SealedSegment] = []

    # Called by the log.

    def add_change(self, change: RowChange) -> None:
        """Let the sync thread change segment rows. Any thread may call this."""
        with self._lock:
            self._changes.append(change)
            self._lock.notify_all()

    def add_opened(self, segment: SegmentFile) -> None:
        """Note that records go into a segment from now on."""
        with self._lock:
            self.segment = segment
            self.add_change(partial(record_opened, segment=segment, created_at=self._clock.now()))

    def add_sealing(self, segment: SegmentFile, last: Position) -> None:
        """Note that the open segment is complete: nothing more will be written to it."""
        with self._lock:
            self._sealing.append((segment, last))
            self.segment = None
            self._lock.notify_all()

    def set_boundary(self, boundary: Position) -> None:
        """Note that a unit is committed. Called with the lock held."""
        self.boundary = boundary
        if self.syncs and self.is_waiting:
            self._lock.notify_all()

    def stop(self, *, truncates: bool = True) -> None:
        """Ask the sync thread to finish the work that is left, and to end.

        Args:
            truncates: give back the unused part of the last segment.
        """
        with self._lock:
            self.truncates = truncates
            self.is_stopped = True
            self._lock.notify_all()

    def close_unsealed(self) -> None:
        """Close the files of segments that could not be sealed."""
        for segment, _ in self._sealing:
            with suppress(OSError):
                segment.close()

    # Progress.

    @property
    def must_sync(self) -> bool:
        """True if a committed record has to survive power loss and may not do so yet."""
        return self.syncs and self.synced.sequence < self.boundary.sequence

    def wait_synced(self, timeout: float) -> bool:
        """Wait until everything that is committed is synced; return False after `timeout` seconds or a failure."""
        end = self._clock.monotonic() + timeout
        self.is_awaited = True
        try:
            while self.must_sync and self.failure is None:
                with self._lock:
                    self._lock.notify_all()
                    self._lock.wait(0.002)
                if self._clock.monotonic() > end:
                    return False
            return self.failure is None
        finally:
            self.is_awaited = False

    # Called by the sync thread, with the lock held.

    @property
    def has_urgent_work(self) -> bool:
        """True if segment rows have changed, segments have to be sealed, or the log is being closed."""
        return bool(self.is_stopped or self._sealing or self._changes)

    def take_work(self, *, with_records: bool) -> SyncWork:
        """Return the work that has accumulated.

        Args:
            with_records: take the records even if nothing demands that they become durable now.
        """
        work = SyncWork(self._changes, self._sealing, self.segment, self.boundary, self.syncs, self.is_stopped)
        self._changes, self._sealing = [], []
        if with_records or work.syncs or work.sealing or work.is_last:
            work.records, self.records = self.records, []
        return work


class GroupCommit:
    """The sync thread of a log.

    Args:
        catalog: the journal's catalog, open for writing.
        clock: the clock.
        lock: of the log.
        state: the state that the log and the thread share.
        writes_watermarks: False if no watermark may be written yet.
        on_idle: called after each group, and every few seconds while there is nothing to sync.
        demand_writer: called before each group is made durable; raises if this process must not write the journal any more.

    Attributes:
        state: the state that the log and the thread share.
        writes_watermarks: False while no watermark may be written, because the checkpoint that the log follows is not published
            yet.
    """

    def __init__(
        self,
        catalog: Catalog,
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
        self.writes_watermarks = writes_watermarks
        self._written_at, self._written_step = clock.monotonic() - 2 * CATALOG_SECONDS, -1
        self._sweeps_from: int | None = 0  # the ordinal from which on rows of pruned segments are looked for
        self._swept_at = clock.monotonic()
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
                work = self.state.take_work(with_records=self._is_late())
            try:
                self._commit_group(work)
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

    def _is_late(self) -> bool:
        return self._clock.monotonic() - self._written_at > CATALOG_SECONDS

    def _commit_group(self, work: SyncWork) -> None:
        """Make a group of records durable, and bring the rows of segments and the watermarks up to date."""
        state = self.state
        if work.syncs:
            for segment, _ in work.sealing:
                segment.sync()
            if work.segment is not None and work.records:
                work.segment.sync()
        self._demand_writer()  # also without records: a deleted lock file is made again while training pauses
        for segment in [*(one for one, _ in work.sealing), *([work.segment] if work.segment is not None else [])]:
            segment.demand_file()
        if work.sealing and state.is_stopped and state.truncates:
            self._write(work.changes, work.records, [partial(record_size, segment=one) for one, _ in work.sealing])
            work.changes, work.records = [], []
            for segment, _ in work.sealing:
                segment.truncate()
        for segment, _ in work.sealing:
            hit("log.seal")
            segment.close()
        sealed = [partial(record_sealed, clock=self._clock, segment=segment, last=last) for segment, last in work.sealing]
        if sealed and (state.is_stopped or self._clock.monotonic() - self._swept_at > SWEEP_SECONDS):
            self._sweeps_from, self._swept_at = 0, self._clock.monotonic()
        is_behind = self._written_step < work.boundary.step and self._is_late()
        is_due = self.writes_watermarks and (is_behind or state.is_stopped)
        if work.changes or work.records or sealed or is_due or self._sweeps_from is not None:
            self._write(work.changes, work.records, sealed, watermarks=work)
        if work.syncs:
            state.synced, self._synced_at = work.boundary, self._clock.monotonic()

    def _write(
        self,
        changes: Sequence[RowChange],
        records: list[RecordRow],
        more: Sequence[RowChange],
        *,
        watermarks: SyncWork | None = None,
    ) -> None:
        """Write records and rows in one transaction."""
        hit("log.rows")
        with self._catalog.transaction(self._is_patient) as tables:  # commit point of `synced`
            for change in changes:
                change(tables)
            add_records(tables, records)
            for change in more:
                change(tables)
            if self._sweeps_from is not None:
                self._sweeps_from = sweep_records(tables, self._sweeps_from)
            if watermarks is not None and self.writes_watermarks:
                self._put_watermarks(tables, watermarks)
        self._written_at = self._clock.monotonic()

    def _put_watermarks(self, tables: Tables, work: SyncWork) -> None:
        committed = work.boundary.step
        known = tables.get("watermarks", Watermarks) or Watermarks()
        synced = committed if work.syncs else min(known.synced, committed)
        tables.put("watermarks", replace(known, committed=committed, synced=synced, at=self._clock.now()))
        self._written_step = committed

    def _is_patient(self) -> bool:
        """Return True as long as this thread can wait for a process that holds LMDB's write lock."""
        return not self.state.is_stopped

    def _wait_for_stop(self) -> None:
        with self._lock:
            while not self.state.is_stopped:
                self._lock.wait()
