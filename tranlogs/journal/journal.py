"""The journal of one process: what training and the monitor talk to.

The life of a journal: `open` takes the lock and opens the catalog, and writes nothing. Recovery may then read, and
`continue_from` sets the position where it has landed. Records and boundaries follow, and `close` ends it.

A step is logged by `begin_step` ... `commit_step`, and counts once a `boundary` follows. When the disk is full or fails, the
journal suspends logging, warns once, lets training continue, and resumes logging from a fresh checkpoint when it can.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable, Collection
from typing import Any

from ..base.clock import Clock, SystemClock
from ..base.config import JournalConfig
from ..base.errors import LogUnavailable, NotRecovered
from ..base.failpoints import hit
from ..catalog import CheckpointRow
from ..checkpoints import Snapshot
from ..encoding import tree
from ..log.definitions import Scalars
from ..log.layout import NO_TENSORS, Payload
from ..log.record import EntryKind, Position
from ..retention import CheckpointPolicy, EverySteps, KeepLatest, RetentionPolicy
from .checkpoints.journal_checkpoints import JournalCheckpoints
from .checkpoints.recovery_speed import RecoverySpeed
from .failures import SUSPENDING_ERRORS
from .holds import PruningHolds
from .opening import OpenedJournal, open_for_writing
from .ownership.shutdown_gate import ShutdownGate, gated
from .ownership.writer_process import WriterProcess
from .writing.journal_log import JournalLog
from .writing.record_writers import Body, StepRecord, Writer
from .writing.start import WritingStart
from .writing.suspension import end_incident
from .writing.suspension_handler import SuspensionHandler

_log = logging.getLogger("tranlogs")


class Journal:
    """The journal that one process writes. Make one with `open`.

    All methods are for the training thread, except `seal` and `shut_down`.

    Attributes:
        paths: the journal's folders.
        catalog: the journal's catalog, open for writing.
        run: row of the run in the catalog.
        config: durability and sizes.
        clock: tells the time.
        notes: what had to be repaired when the run was opened.
        step: optimizer updates applied so far.
        is_fresh: True if the journal holds nothing to recover from.
        adapt: turns a framework's values into arrays; set by an integration.
        gate: passed by each method that writes.
        holds: what keeps monitors, and this process, from pruning.
        log: the log, which is closed while logging is suspended.
        checkpoints: when they are taken, and what is pruned afterwards.
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
        self.step = 0
        self.is_fresh = not catalog.checkpoints() and not any(row.last_step for row in catalog.segments())
        self.adapt: tree.Adapt | None = None
        self.gate = ShutdownGate()
        self._process = WriterProcess(opened.lock)
        self.holds = PruningHolds(catalog, opened.paths.folder, self._process.pid)
        self.checkpoints = JournalCheckpoints(opened, clock, policy, retention, self.holds)
        self.log = JournalLog(opened, config, clock, self.checkpoints.disk_space)
        syncs = config.durability == "machine"
        self._start = WritingStart(opened, clock, self.holds, self.log, self.checkpoints, syncs=syncs)
        self._suspensions = SuspensionHandler(opened, clock, self.log, self.checkpoints, self._start)
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
        take_over: float | None = None,
    ) -> Journal:
        """Open a run for writing; make it if there is none.

        Args:
            run: the run's folder.
            rank: number of this process among those that train together.
            framework: name of the entry point that can replay the run without its script ("torch").
            environment: what rounding depends on; recorded, and compared at recovery.
            config: durability and sizes.
            policy: when a checkpoint is due (default: every 500 steps).
            retention: which checkpoints are kept (default: the newest two).
            clock: tells the time (default: the machine's).
            take_over: if another process writes the run, end it, and give it so many seconds before SIGKILL.

        Raises:
            RunInUse: another live process writes the run.
            UnknownFormat: a newer version of TranLogs wrote the run.
            UsageError: the folder cannot hold a run.
        """
        opened = open_for_writing(run, rank, framework, {} if environment is None else environment, take_over)
        return cls(
            opened, config or JournalConfig(), policy or EverySteps(500), retention or KeepLatest(2), clock or SystemClock()
        )

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
        """Set the position in the log after which the next record goes. Nothing is written before there is a record.

        Args:
            position: where recovery has landed.
            new_timeline: True if there are records behind the position.
            number: of the new timeline, if several journals agree on one; None for the next free number.
            damaged: names of checkpoints that recovery found damaged; they are set aside, so that they do not count.
            checkpoint: the one that recovery started from.
            log_bytes: what recovery read of the log behind that checkpoint.

        Raises:
            RecoveryError: a monitor has pruned the journal since it was opened.
        """
        self._start.set_position(position, damaged)
        self.step = position.step
        if checkpoint is not None:
            self.checkpoints.recovered_from(checkpoint, log_bytes)
        if new_timeline:
            self._start.begin_timeline(number)
        assert self._start.position is not None
        self.log.set_end(self._start.position)

    @gated
    def start(self) -> None:
        """Begin writing, unless that has happened already.

        Raises:
            NotRecovered: the run holds steps, and `continue_from` was not called.
        """
        if self.log.wal is not None or self._suspensions.current is not None:
            return
        if self._start.position is None:
            if not self.is_fresh:
                raise NotRecovered(self.paths.folder.parent, self.catalog.watermarks().committed)
            self.continue_from(self.log.end)
        assert self._start.position is not None
        try:
            self._start.begin(self._start.position, writes_watermarks=True)
            end_incident(self.catalog, self.step, self.clock.now())  # one that was left open by a process that died
        except SUSPENDING_ERRORS as error:
            self._suspend(error)

    # What the journal knows.

    @property
    def timeline(self) -> int:
        """The timeline that the next record belongs to."""
        return self.log.end.timeline

    @property
    def is_suspended(self) -> bool:
        """True while logging is suspended, because the disk is full or fails."""
        return self._suspensions.current is not None

    @property
    def is_closed(self) -> bool:
        """True once `close` was called."""
        return self._process.is_closed

    @property
    def is_writer(self) -> bool:
        """False in a forked child, and after `close`: nothing is logged there."""
        return not self._process.is_closed and self._process.is_caller

    @property
    def committed(self) -> int:
        """The newest step that survives the process."""
        return self.log.committed

    @property
    def synced(self) -> int:
        """The newest step that survives power loss (durability "machine")."""
        return self.log.synced

    @property
    def log_bytes(self) -> int:
        """Bytes of log that this process has written since it last began to write."""
        return self.log.bytes_written

    @property
    def recovery_speed(self) -> RecoverySpeed:
        """How long a recovery would take; integrations note here what they measure."""
        return self.checkpoints.speed

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
            return writer.begin(payload)
        except SUSPENDING_ERRORS as error:
            self._suspend(error)
            return None

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
        """Finish the record of a step. The step counts whether or not it could be logged.

        Args:
            record: what `begin_step` returned.
            body: what the step consumed besides its tensors.
            digests: fingerprint of the state after the step.
        """
        self.step += 1
        if record is None or (writer := self._open_writer()) is None:
            return
        step = self.step
        try:
            if not record.is_open:  # another record was begun before this one was finished: its step would be missing
                raise LogUnavailable(f"the record of step {step} was dropped")
            writer.commit(record, step, body, digests, self.adapt)
        except SUSPENDING_ERRORS as error:
            self._suspend(error)

    @gated
    def append_step(self, payload: Payload, body: dict[str, Any], digests: bytes = b"") -> None:
        """Log a step whose tensors are known only after it (an after-image)."""
        self.step += 1
        self._append(EntryKind.STEP, payload, body, digests)

    @gated
    def append_image(self, payload: Payload, body: dict[str, Any]) -> None:
        """Log an after-image of state that something other than a step has changed."""
        self._append(EntryKind.IMAGE, payload, body)

    @gated
    def boundary(
        self,
        body: dict[str, Any],
        snapshot: Callable[[], Snapshot],
        *,
        scalars: Scalars | None = None,
        checkpoint: bool | None = None,
    ) -> None:
        """Commit everything since the last boundary; take a checkpoint if one is due.

        Args:
            body: auxiliary state, read now.
            snapshot: returns the whole state, as views of live memory; called only if a checkpoint is taken now.
            scalars: what the loop noted for its curves.
            checkpoint: True takes one in any case, False never; None asks the policy.
        """
        if not self.is_writer:
            return
        hit("boundary.before")
        self.start()
        if self._suspensions.current is not None:
            self._suspensions.try_to_resume(self.step, self.adapt, body, snapshot)
            return
        self._append(EntryKind.BOUNDARY, NO_TENSORS, body, scalars=scalars)
        hit("boundary.after")
        if self.log.wal is not None and checkpoint is not False and (checkpoint or self.is_checkpoint_due()):
            self.checkpoint(snapshot())

    def _open_writer(self) -> Writer | None:
        """Return what writes records; None while logging is suspended, in a forked child, and after `close`."""
        process = self._process
        if process.is_closed or os.getpid() != process.pid:
            return None
        if self.log.writer is None:
            self.start()
        return self.log.writer

    def _append(
        self, kind: EntryKind, payload: Payload, body: dict[str, Any], digests: bytes = b"", scalars: Scalars | None = None
    ) -> None:
        writer = self._open_writer()
        if writer is None:
            return
        try:
            writer.append(kind, self.step, payload, body, digests, self.adapt, scalars)
        except SUSPENDING_ERRORS as error:
            self._suspend(error)

    @gated
    def suspend(self, error: Exception) -> None:
        """Suspend logging because the integration cannot tell what a boundary has to hold. It resumes as after any failure."""
        if self.is_writer:
            self._suspend(error)

    def _suspend(self, error: BaseException) -> None:
        self._suspensions.suspend(error, self.step)

    # Checkpoints.

    @gated
    def checkpoint(self, snapshot: Snapshot, *, wait: bool = False) -> bool:
        """Take a checkpoint of the state at the last boundary.

        Args:
            snapshot: the whole state.
            wait: return once it is published.

        Returns:
            False if another checkpoint is being written, or logging is suspended.
        """
        checkpoints, log = self.checkpoints, self.log
        if self._open_writer() is None or not checkpoints.is_started or (checkpoints.is_busy and not wait):
            return False
        checkpoints.wait()
        failure = log.drain()
        if failure is not None:  # the boundary that the snapshot is of did not get into the log
            self._suspend(failure)
            return False
        assert log.wal is not None
        checkpoints.take(snapshot, self.step, log.wal, self.adapt, wait=wait)
        return checkpoints.is_busy or not self._has_checkpoint_failed()

    def is_checkpoint_due(self) -> bool:
        """Return what the policy decides, for a caller that passes `boundary(checkpoint=...)`."""
        if not self.checkpoints.is_started:
            return False
        self._has_checkpoint_failed()
        wal = self.log.wal
        return wal is not None and self.checkpoints.is_due(self.step, wal.bytes_written)

    def _has_checkpoint_failed(self) -> bool:
        """Return True if the last checkpoint could not be written; suspend logging if no other one is left."""
        failure = self.checkpoints.take_failure()
        if failure is None:
            return False
        fatal = self.checkpoints.as_fatal(failure)
        if fatal is not None:
            self._suspend(fatal)
        return True

    def wait_checkpoint(self) -> None:
        """Wait for the checkpoint that is being written."""
        self.checkpoints.wait()

    # The end.

    def wait_synced(self, timeout: float = 60.0) -> bool:
        """Wait until everything that is committed survives power loss; False if it does not within `timeout` seconds."""
        return self.log.wait_synced(timeout)

    def seal(self, timeout: float) -> bool:
        """Seal and sync what is committed, from any thread, while training continues.

        Returns:
            False if that did not succeed within `timeout` seconds.
        """
        return not self._process.is_caller or self.log.seal(timeout)

    def shut_down(self, timeout: float) -> bool:
        """Seal and sync what is committed, from any thread, because the process is about to end.

        A step that is not finished is dropped. Every thread that calls the journal from now on waits forever.

        Returns:
            False if a call did not return in time, so that the log could be synced at most, and not sealed.
        """
        if not self.gate.shut(timeout / 2):
            self.seal(timeout / 2)
            return False
        if self._process.is_closed:
            return True
        self.log.demand_sync()
        failure = self.log.close()
        self._process.lock.mark_closed()
        return failure is None

    @gated
    def close(self) -> None:
        """Seal and sync the log, wait for the checkpoint, and release the lock. Uncommitted records are dropped.

        A Ctrl-C is raised when this is done. A second one is raised at once; `close` may be called again then.
        """
        atexit.unregister(self.close)
        self._process.end(self._end)

    def _end(self) -> None:
        try:
            failure = self.log.close()
            self.log.stop_thread()
            self.wait_checkpoint()
        finally:
            self.catalog.close()
        folder, committed = self.paths.folder, self.committed
        if self._suspensions.current is not None:
            _log.warning("%s: closed while logging was suspended; steps after %d are lost", folder, committed)
        elif failure is not None:
            _log.warning("%s: the log could not be closed cleanly: %s; steps up to %d are safe", folder, failure, committed)
        else:
            _log.info("%s: closed; steps up to %d are safe", folder, committed)
