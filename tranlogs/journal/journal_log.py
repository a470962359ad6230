"""The log of a journal as a state machine: closed, writing, suspended."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection
from typing import Any

from ..base.atomic_files import is_disk_full, make_folder
from ..base.clock import Clock
from ..base.config import JournalConfig
from ..base.errors import SUSPENDING_ERRORS, CorruptCatalog, LogUnavailable, RunLost, error_text
from ..catalog import TimelineRow, Watermarks, segment_key, timeline_key
from ..checkpoints import Snapshot
from ..checkpoints.folder import MANIFEST
from ..encoding import tree
from ..log.layout import NO_TENSORS
from ..log.record_body import EncodedContent
from ..log.record_format import Position, RecordKind
from ..log.record_rows import delete_records
from ..log.segment_file import unlink_retired
from ..log.writer import WriteAheadLog
from ..log.writer_thread import WriterThread
from ..rebuild_catalog import rebuild_catalog
from ..retention.prune import set_aside
from .checkpointing import JournalCheckpoints
from .opening import OpenedJournal, clean_up, retire_unreachable_segments, seal_abandoned_segments
from .paths import JournalPaths
from .pruning_holds import PruningHolds
from .record_writers import LogWriter
from .suspension import Suspension, consequence_of, end_incident, note_incident, outlook_after

_log = logging.getLogger("tranlogs")


class JournalLog:
    """The log of one journal.

    It is closed until `begin` opens it at the position where recovery ended. `suspend` closes it after a failure, and lets
    training continue; `try_to_resume` opens it again, from a fresh checkpoint. `close` ends it.

    Attributes:
        start: the position after which the first record is written; None until it is set.
        thread: the writer thread of `writer="thread"`; None with "direct", and before the log is opened for the first time.
        end: position after the last record that was written before the log was closed.
    """

    def __init__(
        self, opened: OpenedJournal, config: JournalConfig, clock: Clock, holds: PruningHolds, checkpoints: JournalCheckpoints
    ) -> None:
        self._opened, self._config, self._clock, self._holds, self._checkpoints = opened, config, clock, holds, checkpoints
        self.start: Position | None = None
        self._timeline: TimelineRow | None = None  # begins with the first record
        self._damaged: Collection[str] = ()
        self.wal: WriteAheadLog | None = None
        self.writer: LogWriter | None = None
        self.thread: WriterThread | None = None
        self.end = opened.origin
        self._committed = self._synced = 0  # steps, while the log is closed
        self.suspension: Suspension | None = None
        self._previous_suspension: Suspension | None = None

    # Progress.

    @property
    def committed(self) -> int:
        """Number of the newest step that survives the end of the process."""
        return self.wal.group.boundary.step if self.wal is not None else self._committed

    @property
    def synced(self) -> int:
        """Number of the newest step that survives power loss."""
        return self.wal.group.synced.step if self.wal is not None else self._synced

    @property
    def bytes_written(self) -> int:
        """Bytes of log that were written since the log was opened."""
        return self.wal.bytes_written if self.wal is not None else 0

    # Closed: where the first record will stand.

    def set_start(self, position: Position, damaged: Collection[str], *, new_timeline: bool, number: int | None) -> None:
        """Set the position after which the first record is written.

        Args:
            damaged: names of damaged checkpoints, which are set aside when writing begins.

        Raises:
            RecoveryError: a monitor has pruned the journal since it was opened.
        """
        assert self.start is None, "the journal has a position already"
        self._damaged = damaged
        self._checkpoints.schedule.note_taken(position.step, 0)
        self._set_position(position, new_timeline=new_timeline, number=number)

    def _set_position(self, position: Position, *, new_timeline: bool, number: int | None) -> None:
        if new_timeline:
            number = number or self.next_timeline
            self._timeline = TimelineRow(number, position.timeline, position.sequence, position.step, self._clock.now())
            position = position._replace(timeline=number)
            self._holds.hold_start_point()
        self.start = self.end = position
        self._committed = self._synced = position.step

    def fork(self, position: Position, number: int | None) -> None:
        """Let a new timeline begin at a position before `start`: what the log holds behind it counts no more."""
        assert self.wal is None, "a timeline begins before the first record is written"
        self._set_position(position, new_timeline=True, number=number)

    @property
    def next_timeline(self) -> int:
        """The number of the next timeline that begins."""
        return max((row.number for row in self._opened.catalog.timelines()), default=1) + 1

    # Closed -> writing.

    def begin(self, step: int) -> None:
        """Begin writing after `start`. If that fails, logging is suspended."""
        assert self.start is not None
        try:
            self._begin(self.start, writes_watermarks=True)
            end_incident(self._opened.catalog, step, self._clock.now())  # A dead process may have left an incident open.
        except SUSPENDING_ERRORS as error:
            self.suspend(error, step)

    def _begin(self, position: Position, *, writes_watermarks: bool) -> None:
        """Bring the catalog up to date, open the log, and let checkpoints be taken."""
        catalog, paths = self._opened.catalog, self._opened.paths
        seal_abandoned_segments(paths, catalog, sync=self._config.durability == "machine")
        for name in self._damaged:
            set_aside(catalog, paths.checkpoints, name)
        if self._timeline is not None:
            with catalog.transaction() as tables:
                self._holds.release(tables)
                tables.put(timeline_key(self._timeline.number), self._timeline)
                watermarks = tables.get("watermarks", Watermarks) or Watermarks()
                tables.put("watermarks", watermarks.at_most(position.step))
        else:
            retire_unreachable_segments(paths, catalog, position)
            self._holds.release_stale()
        self._holds.forget_former_group()
        self._open(position, writes_watermarks=writes_watermarks)
        self._checkpoints.start(position)

    def _open(self, position: Position, *, writes_watermarks: bool) -> None:
        """Open the log at a position.

        Args:
            writes_watermarks: False if the checkpoint at `position` is not published yet. Until then, no watermark is written.
        """
        opened = self._opened
        self.wal = WriteAheadLog(
            opened.paths.log,
            opened.catalog,
            self._config,
            self._clock,
            position,
            {**opened.describe(position), "created_at": opened.run.created_at},
            writes_watermarks=writes_watermarks,
            space_to_leave=self._checkpoints.disk_space.bytes_for_checkpoint,
            on_full=self._checkpoints.disk_space.request_checkpoint,
            demand_writer=self._demand_files,
        )
        self.wal.group.rows.read_measured = lambda: self._checkpoints.measurements.row
        if self._config.writer == "thread" and self.thread is None:
            self.thread = WriterThread(self._config.queue_bytes_max)
        self.writer = LogWriter(self.wal, self.thread)

    def _demand_files(self) -> None:
        """Check, before records are made durable, that this process still writes the journal, and that they will be of use.

        Raises:
            RunLost: another process writes it, or files of it were moved or deleted.
        """
        self._opened.lock.demand()
        self._checkpoints.demand_newest()

    def _take_segment(self) -> None:
        """Open a segment, to show that the disk has room for one."""
        assert self.wal is not None
        self.wal.begin(NO_TENSORS).abort()

    # Writing.

    @property
    def has_one_open_record(self) -> bool:
        """True if a record that is begun drops the one before, unless that is finished."""
        return self._config.writer != "thread"

    def drain(self) -> BaseException | None:
        """Wait until the writer thread has written all its records; return its error, or None."""
        if self.thread is None:
            return None
        self.thread.drain()
        return self.thread.failure

    def wait_synced(self, timeout: float) -> bool:
        """Wait until all committed steps survive power loss; return False if they do not within `timeout` seconds."""
        self.drain()
        return self.wal is None or self.wal.group.wait_synced(timeout)

    def seal(self, timeout: float) -> bool:
        """Seal and sync all committed steps, from any thread; return False if that takes more than `timeout` seconds."""
        wal = self.wal
        try:
            if wal is not None:
                wal.group.demand_sync()
                wal.seal_now()
                return wal.group.wait_synced(timeout)
        except SUSPENDING_ERRORS as error:
            _log.debug("%s: could not sync the log: %s", self._opened.paths.folder, error)
            return False
        return True

    # Writing -> closed.

    def close(self, *, truncates: bool = True) -> BaseException | None:
        """Close the log as far as errors permit, and set `end`.

        Args:
            truncates: True frees the unused part of the last segment. On a full disk, a file of full size can be used again.

        Returns:
            The first error; None if there was none.
        """
        wal = self.wal
        failure: BaseException | None = None
        if self.writer is not None:
            self.writer.stop()
        if self.thread is not None:
            failure = self.thread.reset()
        if wal is not None:
            try:
                wal.close(truncates=truncates)
            except SUSPENDING_ERRORS as error:
                failure = failure or error
            self.end = wal.position
            if wal.group.rows.writes_watermarks:
                self._committed, self._synced = wal.group.boundary.step, wal.group.synced.step
        self.wal = self.writer = None  # Last, because an interrupted call is repeated from the start.
        return failure

    def stop_thread(self) -> None:
        """End the writer thread. It is not started again."""
        if self.thread is not None:
            self.thread.stop()

    # Writing -> suspended.

    def suspend(self, error: BaseException, step: int) -> None:
        """Close the log, warn once, and let training continue."""
        cause = error.__cause__ if isinstance(error.__cause__, RunLost) else error
        error = self._opened.lock.find_loss() or cause  # It explains the errors that followed from it.
        self.close(truncates=False)
        now, folder = self._clock.monotonic(), self._opened.paths.folder
        if self.suspension is None:
            self.suspension = Suspension.begin(error_text(error), step, self._clock.now(), now, self._previous_suspension)
            _log.warning(
                "%s: logging is suspended at step %d: %s. Training continues; %s. %s",
                folder,
                step,
                error_text(error),
                consequence_of(error, self._committed),
                outlook_after(error),
            )
        else:  # an attempt to resume failed
            self.suspension.postpone(now)
            _log.debug("%s: logging cannot be resumed yet: %s", folder, error)
        try:
            note_incident(self._opened.catalog, self.suspension)
            # Only once this process has begun to write does the catalog have the place where the run continues.
            if is_disk_full(error) and self._checkpoints.is_started and self._checkpoints.retire_older():
                self.suspension.next_try = now
        except SUSPENDING_ERRORS as second:
            _log.debug("%s: could not record the incident: %s", folder, second)

    # Suspended -> writing.

    def try_to_resume(
        self, step: int, adapt: tree.Adapt | None, body: dict[str, Any], snapshot: Callable[[], Snapshot]
    ) -> None:
        """Resume logging from a fresh checkpoint, if it is time for another attempt."""
        suspension, checkpoints = self.suspension, self._checkpoints
        assert suspension is not None
        if self._clock.monotonic() < suspension.next_try or checkpoints.is_busy:
            return
        loss = self._opened.lock.find_loss()
        if loss is not None:
            self.suspend(loss, step)
            return
        # A new chain begins: only the checkpoint links the log after the gap with the log before it.
        position = Position(self.end.sequence + 1, step, secrets.randbits(64), self.end.timeline)
        try:
            self._opened.catalog.write_deleted_file()
            self._rebuild_damaged_catalog()
            if not checkpoints.is_started:  # this process has not written anything yet
                self._begin(position, writes_watermarks=False)
                self._take_segment()
                checkpoints.take_now(snapshot(), position, adapt)
            else:
                self._bring_rows_up_to_date()
                self._open_and_checkpoint(position, snapshot, adapt)
            self._write_boundary(step, body, adapt)
            end_incident(self._opened.catalog, step, self._clock.now(), suspension)
        except SUSPENDING_ERRORS as error:
            self.suspend(error, step)
            return
        assert self.wal is not None
        self.wal.group.rows.writes_watermarks = True
        suspension.end(self._clock.monotonic())
        self.suspension, self._previous_suspension = None, suspension
        checkpoints.schedule.note_taken(step, 0)
        _log.warning("%s: logging resumed from a fresh checkpoint at step %d", self._opened.paths.folder, step)

    def _rebuild_damaged_catalog(self) -> None:
        """Set the catalog aside and write another one, from the files, if it was damaged while it was open."""
        catalog = self._opened.catalog
        try:
            catalog.demand_sound()
        except CorruptCatalog as error:
            notes = rebuild_catalog(self._opened.lock.find_place())
            catalog.demand_sound()
            _log.warning("%s; %s", error, "; ".join(notes))

    def _bring_rows_up_to_date(self) -> None:
        """List segments whose rows were lost with the failure, seal all, and remove rows whose files a program has deleted."""
        # If the folder is moved now, its path names no files, or those of another run.
        catalog, paths = self._opened.catalog, JournalPaths(self._opened.lock.find_place())
        make_folder(paths.log)
        make_folder(paths.checkpoints)
        clean_up(paths, catalog)
        seal_abandoned_segments(paths, catalog, sync=False)
        for row in catalog.checkpoints():
            if not (paths.checkpoints / row.name / MANIFEST).exists():
                set_aside(catalog, paths.checkpoints, row.name)
        deleted = [row.ordinal for row in catalog.segments() if not (paths.log / row.file).exists()]
        if deleted:
            with catalog.transaction() as tables:
                for ordinal in deleted:
                    tables.delete(segment_key(ordinal))
                    delete_records(tables, ordinal)

    def _open_and_checkpoint(self, position: Position, snapshot: Callable[[], Snapshot], adapt: tree.Adapt | None) -> None:
        """Open the log, then take a checkpoint. If the log before the gap fills the disk, take the checkpoint first."""
        checkpoints = self._checkpoints
        try:
            self._open_after_gap(position)
        except SUSPENDING_ERRORS as error:
            if not is_disk_full(error) or not checkpoints.disk_space.has_sealed_segments():
                raise
            self.close()
            checkpoints.take_now(snapshot(), position, adapt)
            self._committed = self._synced = position.step
            checkpoints.retire_older()
            self._open_after_gap(position)
        else:
            checkpoints.take_now(snapshot(), position, adapt)

    def _open_after_gap(self, position: Position) -> None:
        """Open the log at a position that no earlier record leads to, and open a segment.

        Retired files are used again. If none of them has the right size and the disk is full, they are deleted.
        """
        self._open(position, writes_watermarks=False)
        try:
            self._take_segment()
        except SUSPENDING_ERRORS as error:
            catalog, folder = self._opened.catalog, self._opened.paths.log
            if not is_disk_full(error) or not unlink_retired(catalog, folder, catalog.make):
                raise
            self.close()
            self._open(position, writes_watermarks=False)
            self._take_segment()

    def _write_boundary(self, step: int, body: dict[str, Any], adapt: tree.Adapt | None) -> None:
        """Write the boundary and wait until it is synced, which shows that records can be made durable again."""
        wal = self.wal
        assert wal is not None
        wal.append(NO_TENSORS, EncodedContent(RecordKind.BOUNDARY, step, wal.encoder.parts(body, adapt)))
        if not wal.group.wait_synced():
            raise LogUnavailable(error_text(wal.group.failure) if wal.group.failure else "the log cannot be synced")
