"""Group commit: the sync thread makes groups of records durable, seals segments, and writes watermarks.

A group is synced in this order: `fdatasync` of the segments that hold its records, then one transaction with its records, the
rows of segments and the watermarks, which LMDB syncs itself. That commit is the commit point of `synced`. With
durability="process" nothing waits for the disk, and the thread writes the records twice a second.

While a foreign process holds LMDB's write lock, the thread waits, and `synced` lags. No other thread waits for it. Once
WAITING_RECORDS_MAX records wait for their rows, no further record is accepted.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..base.clock import Clock
from ..base.config import CATALOG_SECONDS, GROUP_SECONDS, SWEEP_SECONDS, WAITING_RECORDS_MAX
from ..base.errors import CatalogUnavailable, LogUnavailable, error_text
from ..base.failpoints import hit
from ..base.threads import WaitableLock, start
from ..catalog import Catalog, MeasuredRow, Watermarks
from .preallocator import RowChange
from .record_format import Position
from .record_rows import RecordRow, add_records, sweep_records
from .segment_file import SegmentFile, record_opened, record_sealed, record_size


class GroupCommit:
    """The sync thread of a log, and the work that waits for it. All fields that threads share are guarded by the log's lock.

    Args:
        syncs: False with durability="process".
        on_idle: called after each group, and every few seconds while there is nothing to sync.
        demand_writer: called before each group is made durable; raises if this process must not write the journal any more.

    Attributes:
        synced: the newest boundary known to survive power loss.
    """

    def __init__(
        self,
        folder: Path,
        catalog: Catalog,
        clock: Clock,
        lock: WaitableLock,
        position: Position,
        *,
        syncs: bool,
        writes_watermarks: bool,
        on_idle: Callable[[], None],
        demand_writer: Callable[[], None],
    ) -> None:
        self._folder, self._clock, self._lock = folder, clock, lock
        self.rows = GroupRows(catalog, clock, writes_watermarks=writes_watermarks, is_patient=lambda: not self._is_stopped)
        self._on_idle, self._demand_writer = on_idle, demand_writer
        self.boundary = self.synced = position
        self.failure: BaseException | None = None
        self._syncs = syncs
        self._segment: SegmentFile | None = None  # the open segment
        self._changes: list[RowChange] = []  # of segment rows, in order
        self._sealing: list[tuple[SegmentFile, Position]] = []  # complete segments, and the position after each
        self._records: list[RecordRow] = []  # in their segment, but not in the catalog
        self._waiters = 0  # threads that wait for `synced`
        self._is_waiting = False  # The sync thread waits for work.
        self._is_stopped = False
        self._truncates = True
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
            self.request_stop(truncates=True)
            raise

    # Called by the log.

    def demand_sound(self) -> None:
        """Check that records can still be made durable.

        Raises:
            LogUnavailable: the thread has failed, or too many records wait for it.
        """
        if self.failure is not None:
            raise LogUnavailable(error_text(self.failure)) from self.failure
        if len(self._records) >= WAITING_RECORDS_MAX:
            raise CatalogUnavailable(
                self.rows.path,
                f"{len(self._records)} records wait for their rows: another process holds LMDB's write lock, or the disk hangs",
            )

    def add_record(self, record: RecordRow, boundary: Position | None) -> None:
        """Note that a record is in its segment. Called with the lock held."""
        self._records.append(record)
        if boundary is not None:
            self.boundary = boundary
            if self._syncs and self._is_waiting:
                self._lock.notify_all()

    def add_change(self, change: RowChange) -> None:
        """Let the sync thread change segment rows. Any thread may call this."""
        with self._lock:
            self._changes.append(change)
            self._lock.notify_all()

    def add_opened(self, segment: SegmentFile) -> None:
        """Note that records go into a segment from now on."""
        with self._lock:
            self._segment = segment
            self.add_change(partial(record_opened, segment=segment, created_at=self._clock.now()))

    def add_sealing(self, segment: SegmentFile, last: Position) -> None:
        """Note that the open segment is complete: nothing more will be written to it."""
        with self._lock:
            self._sealing.append((segment, last))
            self._segment = None
            self._lock.notify_all()

    def demand_sync(self) -> None:
        """Make committed and later records survive power loss, even with durability="process". Any thread may call this.

        Raises:
            OSError: the disk fails.
        """
        with self._lock:  # Nothing may be committed between the flush of all files and the first group that is synced.
            if self._syncs:
                return
            for path in self._folder.glob("*.seg"):
                with suppress(FileNotFoundError):  # The file was recycled in the meantime.
                    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    try:
                        os.fdatasync(fd)
                    finally:
                        os.close(fd)
            self._syncs = True
            self._lock.notify_all()

    def wait_synced(self, timeout: float = 60.0) -> bool:
        """Wait until everything that is committed is synced; return False after `timeout` seconds or a failure."""
        end = self._clock.monotonic() + timeout
        with self._lock:
            self._waiters += 1
            try:
                self._lock.notify_all()
                while self._must_sync and self.failure is None:
                    if self._clock.monotonic() > end:
                        return False
                    self._lock.wait(0.002)
                return self.failure is None
            finally:
                self._waiters -= 1

    def request_stop(self, *, truncates: bool) -> None:
        """Ask the thread to finish the work that is left, and to end."""
        with self._lock:
            self._truncates, self._is_stopped = truncates, True
            self._lock.notify_all()

    def join(self) -> None:
        """Wait until the thread has ended, after `request_stop`. An error is in `failure`."""
        self._thread.join()
        for segment, _ in self._sealing:  # They could not be sealed.
            segment.close()

    # The thread.

    def _work(self) -> None:
        is_last = False
        try:
            while not is_last:
                is_last = self._commit_group()
                self._on_idle()
                with self._lock:
                    self._lock.notify_all()
        except Exception as error:
            with self._lock:
                self.failure = error
                self._lock.notify_all()

    @property
    def _must_sync(self) -> bool:
        """True if a committed record has to survive power loss and may not do so yet."""
        return self._syncs and self.synced.sequence < self.boundary.sequence

    @property
    def _has_urgent_work(self) -> bool:
        """True if segment rows have changed, segments have to be sealed, or the log is being closed."""
        return bool(self._is_stopped or self._sealing or self._changes)

    def _wait_for_work(self) -> None:
        """Wait until there is work, for some seconds at most. Called with the lock held."""
        while not (self._has_urgent_work or self._must_sync):
            self._is_waiting = True
            is_notified = self._lock.wait(CATALOG_SECONDS)
            self._is_waiting = False
            if not is_notified:
                break

    def _wait_for_group(self) -> None:
        """Wait for more records if the last group was made durable a moment ago. Called with the lock held."""
        left = self._synced_at + GROUP_SECONDS - self._clock.monotonic()
        if left > 0 and self._must_sync and not (self._has_urgent_work or self._waiters):
            self._lock.wait(left)

    def _commit_group(self) -> bool:
        """Wait for a group of records, make it durable, and bring the rows of segments and the watermarks up to date.

        Returns:
            True if this was the last group, because the log is being closed.
        """
        with self._lock:
            self._wait_for_work()
            self._wait_for_group()
            is_last, syncs, boundary, sealing = self._is_stopped, self._syncs, self.boundary, list(self._sealing)
            complete = [segment for segment, _ in sealing]
            opened = [self._segment] if self._segment is not None else []
            changes, self._changes = self._changes, []
            records = list[RecordRow]()
            if syncs or sealing or is_last or self.rows.is_late():
                records, self._records = self._records, []
        if syncs:
            for segment in [*complete, *(opened if records else [])]:
                segment.sync()
        self._demand_writer()  # also without records: a deleted lock file is made again while training pauses
        for segment in [*complete, *opened]:
            segment.demand_file()
        if complete and is_last and self._truncates:
            self.rows.write([*changes, *(partial(record_size, segment=segment) for segment in complete)], records)
            changes, records = [], []
            for segment in complete:
                segment.truncate(sync=syncs)
        for segment in complete:
            hit("log.seal")
            segment.close()
        changes += [partial(record_sealed, clock=self._clock, segment=segment, last=last) for segment, last in sealing]
        is_due = self.rows.has_work(boundary.step, is_last=is_last, is_sealing=bool(sealing))
        if changes or records or is_due:
            self.rows.write(changes, records, boundary, is_synced=syncs)
        with self._lock:
            del self._sealing[: len(sealing)]
            if syncs:
                self.synced, self._synced_at = boundary, self._clock.monotonic()
        return is_last


class GroupRows:
    """The rows of groups, which the sync thread writes. Each group is one transaction.

    Args:
        is_patient: returns True as long as the thread can wait for a process that holds LMDB's write lock.

    Attributes:
        writes_watermarks: False while no watermark may be written, because the checkpoint that the log follows is not published
            yet.
        read_measured: returns what is to be in the row of measurements.
    """

    def __init__(self, catalog: Catalog, clock: Clock, *, writes_watermarks: bool, is_patient: Callable[[], bool]) -> None:
        self._catalog, self._clock, self._is_patient = catalog, clock, is_patient
        self.path = catalog.path
        self.writes_watermarks = writes_watermarks
        self.read_measured: Callable[[], MeasuredRow | None] = lambda: None
        self._measured: MeasuredRow | None = None  # as it was written
        self._written_at, self._written_step = clock.monotonic() - 2 * CATALOG_SECONDS, -1
        self._sweeps_from: int | None = 0  # the ordinal from which on rows of pruned segments are looked for
        self._swept_at = clock.monotonic()

    def is_late(self) -> bool:
        """Return True if records and watermarks have not been written for some time."""
        return self._clock.monotonic() - self._written_at > CATALOG_SECONDS

    def has_work(self, step: int, *, is_last: bool, is_sealing: bool) -> bool:
        """Return True if there is something to write although no record and no segment has changed.

        Args:
            is_sealing: True if a segment is sealed, so that others may have been pruned.
        """
        if is_sealing and (is_last or self._clock.monotonic() - self._swept_at > SWEEP_SECONDS):
            self._sweeps_from, self._swept_at = 0, self._clock.monotonic()
        is_behind = self._written_step < step and self.is_late()
        return self._sweeps_from is not None or (self.writes_watermarks and (is_behind or is_last))

    def write(
        self,
        changes: Sequence[RowChange],
        records: list[RecordRow],
        boundary: Position | None = None,
        *,
        is_synced: bool = False,
    ) -> None:
        """Write records, rows of segments and the watermarks of a boundary in one transaction."""
        hit("log.rows")
        with self._catalog.transaction(self._is_patient) as tables:  # commit point of `synced`
            for change in changes:
                change(tables)
            add_records(tables, records)
            if self._sweeps_from is not None:
                self._sweeps_from = sweep_records(tables, self._sweeps_from)
            if boundary is not None and self.writes_watermarks:
                known = tables.get("watermarks", Watermarks) or Watermarks()
                synced = boundary.step if is_synced else min(known.synced, boundary.step)
                row = replace(known, committed=boundary.step, synced=synced, at=self._clock.now())
                tables.put("watermarks", row)
                self._written_step = boundary.step
            if (measured := self.read_measured()) is not self._measured:
                tables.put("measured", measured)
                self._measured = measured
        self._written_at = self._clock.monotonic()
