"""Suspend logging when the disk is full or fails, and resume it from a fresh checkpoint."""

from __future__ import annotations

import errno
import logging
import os
import secrets
from collections.abc import Callable
from typing import Any

from ...base.atomic_files import is_disk_full
from ...base.clock import Clock
from ...base.errors import CatalogUnavailable, LogUnavailable, RunLost, UnencodableState, error_text, file_size_limit
from ...catalog import segment_key
from ...checkpoints import Snapshot
from ...checkpoints.folder import MANIFEST
from ...encoding import tree
from ...log.layout import NO_TENSORS
from ...log.record_format import EntryKind, Position
from ...log.record_rows import delete_records
from ...retention.prune import set_aside
from ..abandoned_segments import seal_abandoned_segments
from ..checkpointing.journal_checkpoints import JournalCheckpoints
from ..opening import OpenedJournal, clean_up
from ..suspending_errors import SUSPENDING_ERRORS
from .start import WritingStart
from .suspendable_log import SuspendableLog
from .suspension import Suspension, end_incident, note_incident

_log = logging.getLogger("tranlogs")
_OF_THIS_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EBADF)  # errors that do not come from the disk


class SuspensionHandler:
    """Suspends the logging of one journal after a failure, and resumes it later.

    Attributes:
        current: the suspension that is in force; None while records are logged.
    """

    def __init__(
        self, opened: OpenedJournal, clock: Clock, log: SuspendableLog, checkpoints: JournalCheckpoints, start: WritingStart
    ) -> None:
        self._opened, self._clock, self._journal_log, self._checkpoints = opened, clock, log, checkpoints
        self._start = start
        self.current: Suspension | None = None
        self._previous_suspension: Suspension | None = None

    def suspend(self, error: BaseException, step: int) -> None:
        """Close the log, warn once, and let training continue.

        Args:
            error: why logging is suspended, or could not be resumed.
            step: the newest step of the training.
        """
        cause = error.__cause__ if isinstance(error.__cause__, RunLost) else error
        error = self._opened.lock.find_loss() or cause  # It explains the errors that followed from it.
        self._journal_log.close(truncates=False)
        now = self._clock.monotonic()
        if self.current is None:
            self.current = Suspension.begin(error_text(error), step, self._clock.now(), now, self._previous_suspension)
            _log.warning(
                "%s: logging is suspended at step %d: %s. Training continues; %s. %s",
                self._opened.paths.folder,
                step,
                error_text(error),
                _consequence(error, self._journal_log.committed),
                _outlook(error),
            )
        else:  # an attempt to resume failed
            self.current.postpone(now)
            _log.debug("%s: logging cannot be resumed yet: %s", self._opened.paths.folder, error)
        try:
            note_incident(self._opened.catalog, self.current)
            # Only once this process has begun to write does the catalog tell where the run continues.
            if is_disk_full(error) and self._checkpoints.is_started and self._checkpoints.retire_older():
                self.current.next_try = now
        except SUSPENDING_ERRORS as second:
            _log.debug("%s: could not record the incident: %s", self._opened.paths.folder, second)

    def try_to_resume(
        self, step: int, adapt: tree.Adapt | None, body: dict[str, Any], snapshot: Callable[[], Snapshot]
    ) -> None:
        """Resume logging from a fresh checkpoint, if it is time for another attempt.

        Args:
            step: the newest step of the training.
            adapt: turns a framework's values into arrays.
            body: auxiliary state of this boundary.
            snapshot: returns the whole state.
        """
        suspension, checkpoints = self.current, self._checkpoints
        assert suspension is not None
        if self._clock.monotonic() < suspension.next_try or checkpoints.is_busy:
            return
        loss = self._opened.lock.find_loss()
        if loss is not None:
            self.suspend(loss, step)
            return
        # A new chain begins: only the checkpoint links the log after the gap with the log before it.
        end = self._journal_log.end
        position = Position(end.sequence + 1, step, secrets.randbits(64), end.timeline)
        try:
            self._opened.catalog.write_deleted_file()
            if not checkpoints.is_started:  # this process has not written anything yet
                self._start.begin(position, writes_watermarks=False)
                self._journal_log.take_segment()
                checkpoints.take_now(snapshot(), position, adapt)
            else:
                clean_up(self._opened.paths, self._opened.catalog)  # lists segments whose rows were lost with the failure
                seal_abandoned_segments(self._opened.paths, self._opened.catalog, sync=False)
                self._forget_deleted_files()
                self._open_and_checkpoint(position, snapshot, adapt)
            self._write_boundary(step, body, adapt)
            end_incident(self._opened.catalog, step, self._clock.now(), suspension)
        except SUSPENDING_ERRORS as error:
            self.suspend(error, step)
            return
        assert self._journal_log.wal is not None
        self._journal_log.wal.writes_watermarks = True
        suspension.end(self._clock.monotonic())
        self.current, self._previous_suspension = None, suspension
        checkpoints.schedule.note_taken(step, 0)
        _log.warning("%s: logging resumed from a fresh checkpoint at step %d", self._opened.paths.folder, step)

    def _forget_deleted_files(self) -> None:
        """Remove checkpoints and segments that a program has deleted from the catalog."""
        catalog, paths = self._opened.catalog, self._opened.paths
        place = self._opened.lock.find_place()  # A folder that is moved now must not look like one without files.
        for row in catalog.checkpoints():
            if not (place / paths.checkpoints.name / row.name / MANIFEST).exists():
                set_aside(catalog, place / paths.checkpoints.name, row.name)
        deleted = [row.ordinal for row in catalog.segments() if not (place / paths.log.name / row.file).exists()]
        if deleted:
            with catalog.transaction() as tables:
                for ordinal in deleted:
                    tables.delete(segment_key(ordinal))
                    delete_records(tables, ordinal)

    def _open_and_checkpoint(self, position: Position, snapshot: Callable[[], Snapshot], adapt: tree.Adapt | None) -> None:
        """Open the log, then take a checkpoint. If the log before the gap fills the disk, take the checkpoint first."""
        log, checkpoints = self._journal_log, self._checkpoints
        try:
            log.open_after_gap(position)
        except SUSPENDING_ERRORS as error:
            if not is_disk_full(error) or not checkpoints.disk_space.has_sealed_segments():
                raise
            log.close()
            checkpoints.take_now(snapshot(), position, adapt)
            log.mark_committed(position.step)
            checkpoints.retire_older()
            log.open_after_gap(position)
        else:
            checkpoints.take_now(snapshot(), position, adapt)

    def _write_boundary(self, step: int, body: dict[str, Any], adapt: tree.Adapt | None) -> None:
        """Write the boundary and wait until it is synced, which shows that records can be made durable again."""
        wal = self._journal_log.wal
        assert wal is not None
        wal.append(EntryKind.BOUNDARY, step, NO_TENSORS, wal.encoder.parts(body, adapt))
        if not wal.wait_synced():
            raise LogUnavailable(error_text(wal.failure) if wal.failure else "the log cannot be synced")


def _consequence(error: BaseException, committed: int) -> str:
    if isinstance(error, RunLost) and error.loss:
        return f"a crash now would lose {error.loss}"
    return f"a crash now would go back to step {committed}"


def _is_of_this_process(error: BaseException | None) -> bool:
    """Return True if an error, or one of its causes, is of descriptors or memory, and not of the disk."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _OF_THIS_PROCESS):
            return True
        error = error.__cause__
    return False


def _outlook(error: BaseException) -> str:
    when = "the disk can be written again"
    if isinstance(error, UnencodableState):
        when = "the state can be stored again"
    elif isinstance(error, CatalogUnavailable) or _is_of_this_process(error):
        when = "the cause is removed"
    elif isinstance(error, RunLost):
        when = error.resumes_when
    elif file_size_limit(error) is not None:
        when = f"the limit is raised (prlimit --fsize --pid {os.getpid()})"
    if not when:
        return "Logging does not resume: stop this process, unless it is to end without a log"
    return f"Logging resumes by itself, from a fresh checkpoint, when {when}"
