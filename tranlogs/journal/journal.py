"""The journal of one process, through which training logs.

The life of a journal: `open` takes the lock and opens the catalog, and writes nothing. Recovery may then read, and
`continue_from` sets the position where recovery ended. Records and boundaries follow, and `close` ends the journal.

A step is logged by `begin_step` ... `commit_step`, and counts once a `boundary` follows. A step of which no tensors are logged
is only counted (`count_step`), and the next boundary covers it. When the disk is full or fails, the
journal suspends logging, warns once, lets training continue, and resumes logging from a fresh checkpoint when it can.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Collection
from typing import Any

from ..base.clock import Clock
from ..base.config import JournalConfig
from ..base.errors import SUSPENDING_ERRORS, CatalogUnavailable, LogUnavailable, NotRecovered
from ..base.failpoints import hit
from ..base.threads import ShutdownGate, gated, run_uninterrupted
from ..catalog import CheckpointRow
from ..checkpoints import Snapshot
from ..encoding import tree
from ..log.layout import NO_TENSORS, Payload
from ..log.record_body import Scalars
from ..log.record_format import Position, RecordKind
from ..retention import CheckpointPolicy, EverySteps, KeepLatest, RetentionPolicy
from ..retention.advice import advise
from .checkpoint_schedule import RecoverySpeed
from .checkpointing import JournalCheckpoints
from .journal_log import JournalLog
from .opening import OpenedJournal, open_for_writing
from .pruning_holds import PruningHolds
from .record_writers import Body, RecordContent, StepRecord, Writer
from .requests import RequestService

_log = logging.getLogger("tranlogs")


class Journal:
    """The journal that one process writes. Make one with `open`.

    All methods are for the training thread, except `seal` and `shut_down`.

    Attributes:
        notes: what had to be repaired when the run was opened.
        step: optimizer updates applied so far.
        uncovered: how many of these no boundary covers yet, of those of which no tensors are logged.
        is_fresh: True if the journal holds nothing to recover from.
        adapt: turns a framework's values into arrays; set by an integration.
        gate: passed by each method that writes.
        holds: keep monitors, and this process, from pruning.
        log: the log: closed, writing or suspended.
    """

    def __init__(
        self,
        opened: OpenedJournal,
        config: JournalConfig,
        policy: CheckpointPolicy,
        retention: RetentionPolicy,
        clock: Clock,
    ) -> None:
        catalog = opened.catalog
        self.paths, self.catalog, self.run, self.notes = opened.paths, catalog, opened.run, opened.notes
        self.config, self.clock = config, clock
        self.step = self.uncovered = 0
        self.is_fresh = not catalog.checkpoints() and not any(row.last_step for row in catalog.segments())
        self.adapt: tree.Adapt | None = None
        self.is_closed = False
        self.gate = ShutdownGate()
        self._lock = opened.lock
        self._ending = threading.Lock()
        self.holds = PruningHolds(catalog, opened.paths.folder, os.getpid())
        self.checkpoints = JournalCheckpoints(opened, clock, policy, retention, self.holds)
        self.log = JournalLog(opened, config, clock, self.holds, self.checkpoints)
        self._requests = RequestService(catalog)
        self._recheck_writer: Writer | None = None  # takes the records while a unit is computed again
        self._rechecked: StepRecord | None = None  # the last record that it has begun
        atexit.register(self.close)

    @classmethod
    def open(
        cls,
        run: str | os.PathLike[str],
        *,
        rank: int = 0,
        framework: str,
        environment: dict[str, Any] | None = None,
        config: JournalConfig | None = None,
        policy: CheckpointPolicy | None = None,
        retention: RetentionPolicy | None = None,
        clock: Clock | None = None,
    ) -> Journal:
        """Open a run for writing; create it if there is none.

        Args:
            rank: number of this process among those that train together.
            framework: name of the entry point that can replay the run without its script ("torch").
            environment: what rounding depends on; recorded, and compared at recovery.
            policy: when a checkpoint is due (default: every 500 steps).
            retention: which checkpoints are kept (default: the newest two).

        Raises:
            RunInUse: another live process writes the run.
            UnknownFormat: a newer version of TranLogs wrote the run.
            UsageError: the folder cannot hold a run.
        """
        opened = open_for_writing(run, rank, framework, {} if environment is None else environment)
        return cls(opened, config or JournalConfig(), policy or EverySteps(500), retention or KeepLatest(2), clock or Clock())

    # State.

    @property
    def timeline(self) -> int:
        """The timeline that the next record belongs to."""
        return self.log.end.timeline

    @property
    def is_suspended(self) -> bool:
        """True while logging is suspended, because the disk is full or fails."""
        return self.log.suspension is not None

    @property
    def is_rechecking(self) -> bool:
        """True while a unit is computed again, so that nothing is logged."""
        return self._recheck_writer is not None

    @property
    def was_finished(self) -> bool:
        """True if the process that wrote the journal before came to the end of its script."""
        former = self._lock.former
        return former is not None and former.has_finished

    @property
    def former_loop_end(self) -> str:
        """The place at which that script left its loop; see `Journal.note_finished`."""
        former = self._lock.former
        return former.loop_end if former is not None else ""

    @property
    def is_writer(self) -> bool:
        """False in a forked child, which does not hold the lock, and after `close`: nothing is logged there."""
        return self._lock.is_held and not self.is_closed

    @property
    def committed(self) -> int:
        """Number of the newest step that survives the end of the process."""
        return self.log.committed

    @property
    def synced(self) -> int:
        """Number of the newest step that survives power loss (durability "machine")."""
        return self.log.synced

    @property
    def log_bytes(self) -> int:
        """Bytes of log that this process has written since it last began to write."""
        return self.log.bytes_written

    @property
    def recovery_speed(self) -> RecoverySpeed:
        """Estimates of how long a recovery takes. Integrations record their measurements in it."""
        return self.checkpoints.speed

    def describe_recording(self) -> str:
        """Return in words what is logged now, why, and what a crash costs at most."""
        checkpoints = self.checkpoints
        if self.log.wal is not None:
            checkpoints.schedule.measure(self.step, checkpoints.speed, self.log.wal)
        return advise(checkpoints.measurements.row, checkpoints.schedule.state_bytes, self.clock.now()).recorded

    # Where to continue.

    def continue_from(
        self,
        position: Position,
        *,
        new_timeline: bool = False,
        number: int | None = None,
        damaged: Collection[str] = (),
        checkpoint: CheckpointRow | None = None,
        log_bytes: int = 0,
    ) -> None:
        """Set the position in the log after which the next record is written. Nothing is written until there is a record.

        Args:
            number: number of the new timeline, if several journals agree on one; None for the next free number.
            damaged: names of checkpoints that recovery found damaged. They are set aside and not used again.
            log_bytes: bytes of the log after that checkpoint that recovery read.

        Raises:
            RecoveryError: a monitor has pruned the journal since it was opened.
        """
        self.step = position.step
        self.log.set_start(position, damaged, new_timeline=new_timeline, number=number)
        if checkpoint is not None:
            self.checkpoints.note_recovery(checkpoint, log_bytes)

    def begin_recheck(self, writer: Writer, step: int) -> None:
        """Let training compute again what the log holds behind `step`: `writer` is given its records, and the log is not.

        Args:
            step: where training continues. It is one unit before the position that `continue_from` was given.
        """
        assert self.log.wal is None, "a recheck begins before the first record is written"
        self._recheck_writer, self.step, self.uncovered = writer, step, 0

    def end_recheck(self, step: int | None = None) -> None:
        """Let the log take the records again.

        Args:
            step: to which training has come without records; None if the state is that of the position at which the log ends.
        """
        assert self.log.start is not None
        end = self.log.start.step
        self._recheck_writer, self.step = None, end if step is None else step
        self.uncovered = self.step - end

    @gated
    def start(self) -> None:
        """Begin writing, unless the journal is being written already, or a unit is computed again.

        Raises:
            NotRecovered: the run holds steps, and `continue_from` was not called.
        """
        if self._recheck_writer is not None or self.log.wal is not None or self.is_suspended:
            return
        if self.log.start is None:
            if not self.is_fresh:
                raise NotRecovered(self.paths.folder.parent, self.catalog.watermarks().committed)
            self.continue_from(self.log.end)
        self.log.begin(self.step)

    # Records.

    @gated
    def begin_step(self, payload: Payload) -> StepRecord | None:
        """Start the record of the next step and the writing of its tensors; return None while logging is suspended.

        The memory of the payload must not change until `commit_step`, or until `wait_step` has returned.
        """
        writer = self._open_writer()
        if writer is None:
            return None
        try:
            record = writer.begin(payload)
        except SUSPENDING_ERRORS as error:
            self._suspend(error)
            return None
        if writer is self._recheck_writer and self.log.has_one_open_record:
            if self._rechecked is not None:
                self._rechecked.abort()  # as the log did when the unit was recorded
            self._rechecked = record
        return record

    @gated
    def wait_step(self, record: StepRecord) -> None:
        """Wait until the memory of a record's payload may change."""
        record.wait()

    @gated
    def abort_step(self, record: StepRecord) -> None:
        """Drop a record that was begun, unless it is committed."""
        record.abort()

    @gated
    def commit_step(self, record: StepRecord | None, body: Body, digests: bytes = b"") -> None:
        """Finish the record of a step. The step counts whether or not it could be logged."""
        self.step += 1
        if record is None or (writer := self._open_writer()) is None:
            return
        step = self.step
        try:
            if not record.is_open:  # Another record was begun before this one was finished.
                raise LogUnavailable(f"the record of step {step} was dropped")
            writer.commit(record, RecordContent(RecordKind.STEP, step, body, digests, self.adapt))
        except SUSPENDING_ERRORS as error:
            self._suspend(error)

    def count_step(self) -> None:
        """Count a step of which no tensors are logged. The next boundary covers it, and only training can compute it again."""
        self.step += 1
        self.uncovered += 1

    @gated
    def append_step(self, payload: Payload, body: dict[str, Any], digests: bytes = b"") -> None:
        """Log a step whose tensors are known only after the step (an after-image)."""
        self.step += 1
        self._append(RecordKind.STEP, payload, body, digests)

    @gated
    def append_image(self, payload: Payload, body: dict[str, Any]) -> None:
        """Log an after-image of state that was changed outside a step."""
        self._append(RecordKind.IMAGE, payload, body)

    @gated
    def boundary(
        self,
        body: dict[str, Any],
        snapshot: Callable[[], Snapshot],
        *,
        scalars: Scalars | None = None,
        checkpoint: bool | None = None,
        digests: bytes = b"",
    ) -> None:
        """Commit everything since the last boundary; take a checkpoint if one is due.

        Args:
            snapshot: returns the whole state, as views of live memory; called only if a checkpoint is taken now.
            scalars: the loop's scalars of this unit (loss, accuracy).
            checkpoint: True takes a checkpoint in any case, False takes none; None asks the policy.
            digests: fingerprint of the state after the steps that were counted since the last record.
        """
        is_writer = self.is_writer
        if is_writer:
            hit("boundary.before")
            if self.log.wal is None:
                self.start()
        covered, self.uncovered = self.uncovered, 0  # Like any step, they count whether or not they could be logged.
        self.checkpoints.schedule.is_recomputed |= covered > 0
        if not is_writer:
            return
        if self.log.suspension is not None:
            self.log.try_to_resume(self.step, self.adapt, body, snapshot)
            return
        self._append(RecordKind.BOUNDARY, NO_TENSORS, body, digests, scalars, covered)
        hit("boundary.after")
        if self.log.wal is not None and checkpoint is not False and (checkpoint or self.is_checkpoint_due()):
            self.checkpoint(snapshot())

    def _open_writer(self) -> Writer | None:
        """Return the writer of records; None while logging is suspended, in a forked child, and after `close`."""
        if not self._lock.is_held or self.is_closed:
            return None
        if self._recheck_writer is not None:
            return self._recheck_writer
        if self.log.writer is None:
            self.start()
        return self.log.writer

    def _append(
        self,
        kind: RecordKind,
        payload: Payload,
        body: dict[str, Any],
        digests: bytes = b"",
        scalars: Scalars | None = None,
        covered: int = 0,
    ) -> None:
        writer = self._open_writer()
        if writer is None:
            return
        try:
            writer.append(payload, RecordContent(kind, self.step, body, digests, self.adapt, scalars, covered))
        except SUSPENDING_ERRORS as error:
            self._suspend(error)

    @gated
    def suspend(self, error: Exception) -> None:
        """Suspend logging because the integration cannot read the state for a boundary. It resumes as after any failure."""
        if self.is_writer and self._recheck_writer is None:
            self._suspend(error)

    def _suspend(self, error: BaseException) -> None:
        self.log.suspend(error, self.step)

    # Checkpoints.

    @gated
    def checkpoint(self, snapshot: Snapshot, *, wait: bool = False) -> bool:
        """Take a checkpoint of the state at the last boundary.

        Returns:
            False if another checkpoint is being written, or logging is suspended.
        """
        checkpoints, log = self.checkpoints, self.log
        if self._open_writer() is None or self.is_rechecking or not checkpoints.is_started:
            return False
        assert not self.uncovered, f"a checkpoint of no boundary: {self.uncovered} steps came since the last one"
        if checkpoints.is_busy and not wait:
            return False
        checkpoints.wait()
        if checkpoints.is_busy:  # A foreign process holds the catalog.
            return False
        failure = log.drain()
        if failure is not None:  # The boundary at which the snapshot was taken is not in the log.
            self._suspend(failure)
            return False
        assert log.wal is not None
        checkpoints.take(snapshot, self.step, log.wal, self.adapt, wait=wait)
        return checkpoints.is_busy or not self._has_checkpoint_failed()

    @property
    def wants_recomputed_checkpoint(self) -> bool:
        """True if a checkpoint of a state that training has computed again is due or costs little: the next start goes on from
        there. A job that is killed again and again before one is due makes progress, too.
        """
        checkpoints = self.checkpoints
        if checkpoints.is_busy or not self.is_writer:
            return False
        checkpoints.schedule.is_recomputed = True
        return checkpoints.schedule.is_affordable or checkpoints.schedule.is_due(self.step, 0, checkpoints.speed)

    def checkpoint_recomputed(self, position: Position, snapshot: Callable[[], Snapshot]) -> None:
        """Take a checkpoint of a state that training has computed again, unless another one is being written."""
        checkpoints = self.checkpoints
        if not checkpoints.is_busy and self.is_writer:
            checkpoints.start(position)
            checkpoints.take_recomputed(snapshot(), position, self.adapt)

    def is_checkpoint_due(self) -> bool:
        """Return True if the policy wants a checkpoint now, for a caller that passes `boundary(checkpoint=...)`."""
        if not self.checkpoints.is_started:
            return False
        self._has_checkpoint_failed()
        wal = self.log.wal
        return wal is not None and self.checkpoints.is_due(self.step, wal.bytes_written)

    def _has_checkpoint_failed(self) -> bool:
        """Return True if the last checkpoint could not be written; suspend logging if there is no other checkpoint."""
        failure = self.checkpoints.take_failure()
        if failure is None:
            return False
        fatal = self.checkpoints.as_fatal(failure)
        if fatal is not None:
            self._suspend(fatal)
        return True

    def wait_checkpoint(self) -> None:
        """Wait for the checkpoint that is being written, unless a foreign process holds the catalog."""
        self.checkpoints.wait()

    # The end.

    def wait_synced(self, timeout: float = 60.0) -> bool:
        """Wait until all committed steps survive power loss; return False if they do not within `timeout` seconds."""
        return self.log.wait_synced(timeout)

    def seal(self, timeout: float) -> bool:
        """Seal and sync all committed steps, from any thread, while training continues.

        Returns:
            False if the log was not synced within `timeout` seconds.
        """
        return not self._lock.is_held or self.log.seal(timeout)

    def shut_down(self, timeout: float) -> bool:
        """Seal and sync all committed steps, from any thread, because the process is about to end.

        A step that is not finished is dropped. Every thread that calls the journal from now on waits forever.

        Returns:
            False if a call of another thread did not return in time. The log is then synced as far as possible, but not sealed.
        """
        if not self.gate.shut(timeout / 2):
            self.seal(timeout / 2)
            return False
        if self.is_closed:
            return True
        if self.log.wal is not None:
            self.log.wal.group.demand_sync()
        failure = self.log.close()
        if failure is None:
            self._lock.mark_closed()
        return failure is None

    def note_finished(self, loop_end: str = "") -> None:
        """Record with `close` that the script came to its end: the next process need not compute a unit again.

        Args:
            loop_end: "complete" if nothing was left of its loop; else the place where it was left ("in epoch 12 of 20");
                empty if that is not known.
        """
        self._lock.has_finished, self._lock.loop_end = True, loop_end

    @gated
    def close(self) -> None:
        """Seal and sync the log, wait for the checkpoint, and release the lock. Uncommitted records are dropped.

        A Ctrl-C is raised when the journal is closed. A second Ctrl-C is raised at once; `close` may then be called again.
        """
        atexit.unregister(self.close)
        if not self._lock.is_held:
            return
        self.is_closed = True
        run_uninterrupted("tranlogs-end", self._end)

    def _end(self) -> None:
        """Close all, and release the lock, once."""
        with self._ending:
            if self._lock.is_held:
                has_closed = False
                try:
                    has_closed = self._close_parts()
                finally:
                    self._lock.release(has_closed=has_closed)

    def _close_parts(self) -> bool:
        """Close all but the lock; return True if the log was closed in order, so that the journal counts as closed."""
        unlisted: BaseException | None = None
        try:
            if self.log.wal is not None:
                self.checkpoints.schedule.measure(self.step, self.recovery_speed, self.log.wal)
            failure = self.log.close()
            self.log.stop_thread()
            unlisted = self.checkpoints.close()
        finally:
            self._requests.close()
            self.catalog.close()
        folder, committed = self.paths.folder, self.committed
        if isinstance(unlisted, CatalogUnavailable):
            _log.warning("%s: the last checkpoint is complete, and is listed when the run is opened next: %s", folder, unlisted)
        if self.is_suspended:
            _log.warning("%s: closed while logging was suspended; steps after %d are lost", folder, committed)
        elif failure is not None:
            _log.warning("%s: the log could not be closed cleanly: %s; steps up to %d are safe", folder, failure, committed)
        else:
            _log.info("%s: closed; steps up to %d are safe", folder, committed)
        return failure is None and not self.is_suspended
