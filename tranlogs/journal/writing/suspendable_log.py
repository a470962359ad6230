"""The write-ahead log of a journal, which is closed while logging is suspended and opened again afterwards."""

from __future__ import annotations

import logging

from ...base.atomic_files import is_disk_full
from ...base.clock import Clock
from ...base.config import JournalConfig
from ...log.layout import NO_TENSORS
from ...log.record_format import Position
from ...log.segments.retired_files import unlink_retired
from ...log.writer import WriteAheadLog
from ..checkpointing.disk_space import DiskSpace
from ..opening import OpenedJournal
from ..suspending_errors import SUSPENDING_ERRORS
from .record_writers import DirectWriter, QueuedWriter, Writer
from .writer_thread import WriterThread

_log = logging.getLogger("tranlogs")


class SuspendableLog:
    """The log of one journal: open, or closed with the position where it ended.

    Attributes:
        wal: the open log; None while it is closed.
        writer: writes records to `wal`; None while it is closed.
        thread: the writer thread of `writer="thread"`; None with "direct", and before the log is opened for the first time.
        end: position after the last record that was written before the log was closed.
    """

    def __init__(self, opened: OpenedJournal, config: JournalConfig, clock: Clock, disk_space: DiskSpace) -> None:
        self._opened, self._config, self._clock, self._disk_space = opened, config, clock, disk_space
        self.wal: WriteAheadLog | None = None
        self.writer: Writer | None = None
        self.thread: WriterThread | None = None
        self.end = opened.origin
        self._committed = self._synced = 0  # steps, while the log is closed

    # Position.

    @property
    def committed(self) -> int:
        """Number of the newest step that survives the end of the process."""
        return self.wal.boundary.step if self.wal is not None else self._committed

    @property
    def synced(self) -> int:
        """Number of the newest step that survives power loss."""
        return self.wal.synced.step if self.wal is not None else self._synced

    @property
    def bytes_written(self) -> int:
        """Bytes of log that were written since the log was opened."""
        return self.wal.bytes_written if self.wal is not None else 0

    def set_end(self, position: Position) -> None:
        """Set the end of the closed log to the position at which recovery ended."""
        self.end = position
        self._committed = self._synced = position.step

    def mark_committed(self, step: int) -> None:
        """Record that a checkpoint of a step was published while the log is closed, so that the step is safe."""
        self._committed = self._synced = step

    # Opening and closing.

    def open(self, position: Position, *, writes_watermarks: bool) -> None:
        """Open the log at a position.

        Args:
            position: where the chain of records continues.
            writes_watermarks: False if the checkpoint at `position` is not published yet. Until then, no watermark is written.

        Raises:
            LogUnavailable: the disk is full or fails.
        """
        opened = self._opened
        describe = {**opened.describe(position), "created_at": opened.run.created_at}
        self.wal = WriteAheadLog(
            opened.paths.log,
            opened.catalog,
            self._config,
            self._clock,
            position,
            describe,
            writes_watermarks=writes_watermarks,
            reserve=self._disk_space,
            demand_writer=opened.lock.demand,
        )
        if self._config.writer == "direct":
            self.writer = DirectWriter(self.wal)
        else:
            self.thread = self.thread or WriterThread(self._config.queue_bytes_max)
            self.writer = QueuedWriter(self.wal, self.thread)

    def open_after_gap(self, position: Position) -> None:
        """Open the log at a position that no earlier record leads to, and open a segment.

        Retired files are used again. If none of them has the right size and the disk is full, they are deleted.

        Raises:
            LogUnavailable: the disk is full or fails.
        """
        self.open(position, writes_watermarks=False)
        try:
            self.take_segment()
        except SUSPENDING_ERRORS as error:
            catalog, folder = self._opened.catalog, self._opened.paths.log
            if not is_disk_full(error) or not unlink_retired(catalog, folder, catalog.make):
                raise
            self.close()
            self.open(position, writes_watermarks=False)
            self.take_segment()

    def take_segment(self) -> None:
        """Open a segment, to show that the disk has room for one.

        Raises:
            LogUnavailable: the disk has no room for a segment.
        """
        assert self.wal is not None
        self.wal.begin(NO_TENSORS).abort()

    def close(self, *, truncates: bool = True) -> BaseException | None:
        """Close the log as far as errors permit, and set `end`.

        Args:
            truncates: True frees the unused part of the last segment. On a full disk, a file of full size can be used again.

        Returns:
            The first error; None if there was none.
        """
        wal = self.wal
        failure: BaseException | None = None
        if self.thread is not None:
            failure = self.thread.reset()
        if wal is not None:
            try:
                wal.close(truncates=truncates)
            except SUSPENDING_ERRORS as error:
                failure = failure or error
            self.end = wal.position
            if wal.writes_watermarks:
                self._committed, self._synced = wal.boundary.step, wal.synced.step
        self.wal = self.writer = None  # Last, because an interrupted call is repeated from the start.
        return failure

    def stop_thread(self) -> None:
        """End the writer thread. It is not started again."""
        if self.thread is not None:
            self.thread.stop()

    # Syncing.

    def drain(self) -> BaseException | None:
        """Wait until the writer thread has written all its records; return its error, or None."""
        if self.thread is None:
            return None
        self.thread.drain()
        return self.thread.failure

    def wait_synced(self, timeout: float) -> bool:
        """Wait until all committed steps survive power loss; return False if they do not within `timeout` seconds."""
        self.drain()
        return self.wal is None or self.wal.wait_synced(timeout)

    def demand_sync(self) -> None:
        """Sync all committed steps from now on, also with durability="process"."""
        if self.wal is not None:
            self.wal.demand_sync()

    def seal(self, timeout: float) -> bool:
        """Seal and sync all committed steps, from any thread; return False if that takes more than `timeout` seconds."""
        wal = self.wal
        try:
            if wal is not None:
                wal.demand_sync()
                wal.seal_now()
                return wal.wait_synced(timeout)
        except SUSPENDING_ERRORS as error:
            _log.debug("%s: could not sync the log: %s", self._opened.paths.folder, error)
            return False
        return True
