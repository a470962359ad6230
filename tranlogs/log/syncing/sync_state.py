"""The state that the thread which logs shares with the sync thread: work for the sync thread, and its progress."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from ...base.clock import Clock
from ...base.threads import WaitableLock
from ..record_format import Position
from ..record_rows import RecordRow
from ..segments.preallocator import RowChange
from ..segments.segment_file import SegmentFile
from ..segments.segment_rows import record_opened

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
