"""The journal of one process: opens the run, takes records, commits boundaries, takes checkpoints, survives failures.

Life: `open` (lock, catalog, nothing written) -> recovery may read -> `continue_from` a position -> records and boundaries
-> `close`. A step is logged by `begin_step` ... `commit_step`; it counts once a `boundary` follows. When the disk is
full or fails, the journal suspends logging, says so once, lets training go on, and takes logging up again from a fresh
checkpoint when it can (promise 5). All methods are for the training thread, but for `secure` and `part`.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from ..base.atomic_files import is_disk_full, make_folder
from ..base.clock import Clock, SystemClock
from ..base.config import RESERVE_BYTES_MIN, JournalConfig
from ..base.errors import CorruptCatalog, LogUnavailable, NotRecovered, RecoveryError, UnencodableState, UsageError, error_text
from ..base.failpoints import hit
from ..base.threads import run_uninterrupted
from ..catalog import Catalog, CheckpointRow, CommonRow, PrunedRow, RunRow, Tables, TimelineRow, Watermarks, timeline_key
from ..checkpoints import Snapshot
from ..encoding import tree
from ..log.layout import NO_TENSORS, Payload
from ..log.record import EntryKind, Position
from ..log.retired_files import unlink_retired
from ..log.writer import Scalars, WriteAheadLog
from ..retention import CheckpointPolicy, EverySteps, KeepLatest, RetentionPolicy
from ..retention.keep_policy import when_full
from ..retention.prune import retire, set_aside
from .checkpoints.checkpointer import Checkpointer
from .checkpoints.disk_space import DiskSpace
from .checkpoints.schedule import CheckpointSchedule
from .opening import (
    JournalPaths,
    open_catalog,
    open_index,
    refuse_inner_folder,
    refuse_network_file_system,
    seal_abandoned_segments,
)
from .process.shutdown_gate import ShutdownGate, gated
from .process.takeover import take_lock
from .process.writer_lock import OwnerLock
from .writing.record_writers import Body, DirectWriter, QueuedWriter, StepRecord, Writer
from .writing.suspension import Suspension, end_incident, note_incident
from .writing.writer_thread import WriterThread

_log = logging.getLogger("tranlogs")

# What suspends logging and not training. UnencodableState: a tracked object has changed since it was registered.
_FAILURES = (LogUnavailable, CorruptCatalog, UnencodableState, MemoryError, OSError)


class Journal:
    """See the module. Make one with `open`.

    Attributes:
        step: optimizer updates applied so far.
        notes: what had to be set right when the run was opened.
        is_fresh: whether the run holds nothing yet.
    """

    def __init__(self, paths: JournalPaths, lock: OwnerLock, catalog: Catalog, run: RunRow, environment: dict[str, Any],
                 config: JournalConfig, policy: CheckpointPolicy, retention: RetentionPolicy, clock: Clock,
                 notes: list[str]) -> None:  # fmt: skip
        self.paths, self.catalog, self.run, self.config, self.clock, self.notes = paths, catalog, run, config, clock, notes
        self.environment = environment
        self.retention = retention
        self._lock = lock
        self._pid = os.getpid()
        self.gate = ShutdownGate()
        self._wal: WriteAheadLog | None = None
        self._writer: Writer | None = None  # of the log
        self._handover: WriterThread | None = None
        self._position: Position | None = None
        self._origin = Position(chain=int(run.run_id[:16], 16))  # so that no file of another run fits to this one's
        self._frontier = self._origin  # behind everything written
        self._committed = self._synced = 0  # steps, while no log is open
        self._timeline: TimelineRow | None = None
        self._damaged: Collection[str] = ()
        self._checkpointer: Checkpointer | None = None
        self._suspension: Suspension | None = None
        self._ended: Suspension | None = None  # the one before
        self._closed = False
        self._ending = threading.Lock()
        self.step = 0
        self.is_fresh = not catalog.checkpoints() and not any(row.last_step for row in catalog.segments())
        self.adapt: tree.Adapt | None = None
        self.replay_seconds_per_step = 0.0
        self._is_replay_measured = False
        self.load_seconds = 0.0
        self._schedule = CheckpointSchedule(policy, catalog, clock)
        self._pruned_before: PrunedRow | None = catalog.read(lambda tables: tables.get("pruned", PrunedRow))
        self._has_said_failed = self._has_said_full = self._is_unpruned = False
        self._disk_space = DiskSpace(catalog, retention, lambda: self._is_unpruned)
        self._common: CommonRow | None = None
        self.checkpoint_step = 0  # of the newest one that was published, or from which recovery came
        atexit.register(self.close)

    @classmethod
    def open(cls, run: str | os.PathLike[str], *, rank: int = 0, framework: str, environment: dict[str, Any] | None = None,
             config: JournalConfig | None = None, policy: CheckpointPolicy | None = None,
             retention: RetentionPolicy | None = None, clock: Clock | None = None,
             take_over: float | None = None) -> Journal:  # fmt: skip
        """Open a run for writing; it is made if there is none.

        Args:
            run: the run's folder.
            rank: number of this process among those that train together.
            framework: name of the entry point that can replay the run without its script ("torch").
            environment: what rounding depends on; recorded, and compared at recovery.
            config: durability and sizes.
            policy: when a checkpoint is due (default: every 500 steps).
            retention: which ones are kept (default: the newest two).
            take_over: another process that writes it is ended; it has so many seconds before SIGKILL.

        Raises:
            RunInUse: another live process writes it.
            UnknownFormat: a newer version of TranLogs wrote it.
            UsageError: the folder cannot hold a run.
        """
        paths = JournalPaths.of(run, rank)
        refuse_inner_folder(paths.folder.parent)
        notes: list[str] = []
        try:
            make_folder(paths.log)
            make_folder(paths.checkpoints)
        except OSError as error:
            raise UsageError(f"{run}: a run cannot be kept there ({error})") from None
        notes += refuse_network_file_system(paths.folder)
        try:
            lock = take_lock(paths.folder, take_over)
            try:
                catalog, row = open_catalog(paths, rank, framework, notes)
            except BaseException:
                lock.release()
                raise
        except (LogUnavailable, OSError) as error:
            raise UsageError(f"{run}: the run cannot be opened for writing: {error}") from None
        for note in notes:
            _log.warning("%s: %s", run, note)
        clock = clock or SystemClock()
        environment = {} if environment is None else environment  # kept by reference: an integration fills it later
        return cls(paths, lock, catalog, row, environment, config or JournalConfig(), policy or EverySteps(500),
                   retention or KeepLatest(2), clock, notes)  # fmt: skip

    # Where to go on.

    def hold(self) -> None:
        """Ask monitors to prune nothing until this process begins to write: before a recovery that is to go back."""
        with suppress(*_FAILURES), self.catalog.transaction() as tables:  # nor can a monitor change the catalog, then
            self._pruned_before = tables.get("pruned", PrunedRow)
            self._put_hold(tables)

    def _hold(self) -> None:
        """The same where recovery has landed: only this process knows where it will go on.

        Raises:
            RecoveryError: a monitor has pruned since the run was opened or held, and may have taken what this goes on from.
        """
        try:
            with self.catalog.transaction() as tables:
                has_pruned = tables.get("pruned", PrunedRow) != self._pruned_before
                self._put_hold(tables)
        except _FAILURES as error:  # nor can a monitor change the catalog, then
            _log.debug("the hold could not be written down: %s", error)
            return
        if has_pruned:
            raise RecoveryError(f"{self.paths.folder}: a monitor pruned it while it was being recovered. Start again")

    def _put_hold(self, tables: Tables) -> None:
        if not (tables.request("hold") or {}).get("outlives"):  # a stronger one stays
            tables.put_request("hold", {"pid": self._pid})

    @contextmanager
    def unpruned(self) -> Iterator[None]:
        """Meanwhile nothing is pruned, by this process or a monitor: other journals may need what is here.

        If that does not end well it holds until a process goes on with the run.
        """
        self._is_unpruned = True
        with self.catalog.transaction() as tables:
            tables.put_request("hold", {"pid": self._pid, "outlives": True})
        yield
        self._is_unpruned = False
        with suppress(*_FAILURES), self.catalog.transaction() as tables:
            tables.delete("request/hold")

    def keep_all(self) -> None:
        """Prune nothing from here on, by this process or a monitor, until another process goes on with the run."""
        self._is_unpruned = True
        with suppress(*_FAILURES), self.catalog.transaction() as tables:  # nor can a monitor change the catalog, then
            tables.put_request("hold", {"pid": self._pid, "outlives": True})

    def note_common(self, step: int, world: int) -> None:
        """Of a journal among `world`: all ranks have a checkpoint of this step or a newer one, and may go back there.

        What recovery from the newest one up to it needs is not pruned, by nobody.
        """
        common = CommonRow(step, world)
        if common != self._common:
            self._common = common
            with suppress(*_FAILURES), self.catalog.transaction() as tables:  # nor can anything be retired, then
                tables.put("common", common)

    def continue_from(self, position: Position, *, new_timeline: bool = False, number: int | None = None,
                   damaged: Collection[str] = (), checkpoint: CheckpointRow | None = None,
                   log_bytes: int = 0) -> None:  # fmt: skip
        """Set the place in the log after which the next record goes. Nothing is written before there is one.

        Args:
            position: where recovery landed.
            new_timeline: whether there is something behind it.
            number: of the new timeline, where several journals agree on it; None for the next one.
            damaged: names of checkpoints that recovery found damaged; they are set aside, so that they do not count.
            checkpoint: the one that recovery started from; the next is due by what has come since it, so that a run
                that crashes often still takes checkpoints.
            log_bytes: what recovery read of the log behind it.
        """
        assert self._position is None, "the journal goes on already"
        self._damaged = damaged
        self.step, self._position = position.step, position
        self._schedule.taken(position.step, 0)
        if checkpoint is not None:
            self.checkpoint_step = checkpoint.step
            self._schedule.taken(checkpoint.step, -log_bytes, max(0.0, self.clock.now() - checkpoint.created_at))
        if new_timeline:
            number = number or max((row.number for row in self.catalog.timelines()), default=1) + 1
            self._timeline = TimelineRow(number, position.timeline, position.sequence, position.step, self.clock.now())
            self._position = replace(position, timeline=number)
            self._hold()
        self._frontier, self._committed, self._synced = self._position, position.step, position.step

    @property
    def timeline(self) -> int:
        """The timeline that the next record belongs to."""
        return self._frontier.timeline

    @gated
    def start(self) -> None:
        """Begin writing, if that did not happen yet.

        Raises:
            NotRecovered: the run holds steps and nobody recovered.
        """
        if self._wal is not None or self._suspension is not None:
            return
        if self._position is None:
            if not self.is_fresh:
                raise NotRecovered(self.paths.folder.parent, self.catalog.watermarks().committed)
            self.continue_from(self._origin)
        try:
            self._start_writing()
            end_incident(self.catalog, self.step, self.clock.now())  # one that a process which died had left open
        except _FAILURES as error:
            self._suspend(error)

    def _start_writing(self) -> None:
        assert self._position is not None
        seal_abandoned_segments(self.paths, self.catalog, sync=self.config.durability == "machine")
        for name in self._damaged:
            set_aside(self.catalog, self.paths.checkpoints, name)
        if self._timeline is not None:
            with self.catalog.transaction() as tables:
                if not self._is_unpruned:
                    tables.delete("request/hold")  # from here on the catalog tells where it goes on
                tables.put(timeline_key(self._timeline.number), self._timeline)
                now, step = tables.get("watermarks", Watermarks) or Watermarks(), self._position.step
                tables.put("watermarks", now.at_most(step))
        elif self.catalog.read(lambda tables: tables.request("hold")) is not None:  # of one that died
            with self.catalog.transaction() as tables:
                tables.delete("request/hold")
        if self._common is None and self.catalog.read(lambda tables: tables.get("common", CommonRow)) is not None:
            with self.catalog.transaction() as tables:
                tables.delete("common")  # of a group that this process is no part of
        self._open_log(self._position, counts=self._suspension is None)
        about = self._describe(self._position)
        self._checkpointer = Checkpointer(self.paths.checkpoints, self.catalog, self.clock, about, self._published,
                                          self._give_up_older)  # fmt: skip

    def _describe(self, position: Position) -> dict[str, Any]:
        """What segments and checkpoints say of the run that they are part of."""
        timelines = {row.number: row for row in self.catalog.timelines()}
        line = timelines.get(position.timeline, TimelineRow(position.timeline))
        return {
            "run_id": self.run.run_id, "rank": self.run.rank, "framework": self.run.framework, "environment": self.environment,
            "parent": line.parent, "fork_sequence": line.fork_sequence, "fork_step": line.fork_step,
        }  # fmt: skip

    def _open_log(self, position: Position, *, counts: bool) -> None:
        describe = {**self._describe(position), "created_at": self.run.created_at}
        index = open_index(self.paths, self.catalog, self.run.run_id)
        try:
            self._wal = WriteAheadLog(self.paths.log, self.catalog, index, self.config, self.clock, position, describe,
                                      counts=counts, keep_free=self._disk_space.bytes_for_a_checkpoint,
                                      on_full=self._disk_space.ask)  # fmt: skip
        except BaseException:
            index.close()
            raise
        if self.config.writer == "direct":
            self._writer = DirectWriter(self._wal)
        else:
            self._handover = self._handover or WriterThread(self.config.queue_bytes_max)
            self._writer = QueuedWriter(self._wal, self._handover)

    # Records.

    @property
    def is_suspended(self) -> bool:
        """Whether logging is suspended (disk full, I/O error)."""
        return self._suspension is not None

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def is_writer(self) -> bool:
        """False in a forked child, and after `close`: nothing is logged there."""
        return not self._closed and os.getpid() == self._pid

    @property
    def committed(self) -> int:
        """The newest step that survives the process."""
        return self._wal.boundary.step if self._wal is not None else self._committed

    @property
    def synced(self) -> int:
        """The newest step that survives power loss (durability "machine")."""
        return self._wal.synced.step if self._wal is not None else self._synced

    @property
    def log_bytes(self) -> int:
        """Bytes of log written by this process since it last began to write."""
        return self._wal.bytes_written if self._wal is not None else 0

    @gated
    def begin_step(self, payload: Payload) -> StepRecord | None:
        """Start the record of the next step and the writing of its tensors. None while suspended.

        The memory of the payload must stay as it is until `commit_step`, or until `wait_step` has returned.
        """
        if self._started() is None:
            return None
        assert self._writer is not None
        try:
            return self._writer.begin(payload)
        except _FAILURES as error:
            self._suspend(error)
            return None

    @gated
    def wait_step(self, record: StepRecord) -> None:
        """Wait until the memory of a record's payload may change."""
        record.wait()

    @gated
    def abort_step(self, record: StepRecord) -> None:
        """Forget a record that was begun, if it is not committed."""
        record.abort()

    @gated
    def commit_step(self, record: StepRecord | None, body: Body, digests: bytes = b"") -> None:
        """Finish the record of a step. The step counts whether or not it could be logged.

        Args:
            record: of `begin_step`.
            body: what the step consumed besides its tensors.
            digests: fingerprint of the state after the step.
        """
        self.step += 1
        if record is None or self._started() is None:
            return
        step = self.step
        try:
            if not record.is_open:  # another entry began before this one was finished: its step would be missing
                raise LogUnavailable(f"the record of step {step} was dropped")
            assert self._writer is not None
            self._writer.commit(record, step, body, digests, self.adapt)
        except _FAILURES as error:
            self._suspend(error)

    @gated
    def append_step(self, payload: Payload, body: dict[str, Any], digests: bytes = b"") -> None:
        """Log a step whose tensors are known only after it (an after-image)."""
        self.step += 1
        self._append(EntryKind.STEP, payload, body, digests)

    @gated
    def append_image(self, payload: Payload, body: dict[str, Any]) -> None:
        """Log an after-image of state that something else than a step has changed."""
        self._append(EntryKind.IMAGE, payload, body)

    @gated
    def boundary(self, body: dict[str, Any], snapshot: Callable[[], Snapshot], *, scalars: Scalars | None = None,
                 checkpoint: bool | None = None) -> None:  # fmt: skip
        """Commit all since the last boundary; take a checkpoint if one is due.

        Args:
            body: auxiliary state, read now.
            snapshot: gives the whole state, as views of live memory; called only if a checkpoint is taken now.
            scalars: what the loop noted, for its curves.
            checkpoint: True takes one in any case, False never; None asks the policy.
        """
        if not self.is_writer:
            return
        hit("boundary.before")
        self.start()
        if self._suspension is not None:
            self._try_to_resume(body, snapshot)
            return
        self._append(EntryKind.BOUNDARY, NO_TENSORS, body, scalars=scalars)
        hit("boundary.after")
        if self._wal is not None and checkpoint is not False and (checkpoint or self._is_checkpoint_due()):
            self.checkpoint(snapshot())

    @gated
    def suspend(self, error: Exception) -> None:
        """Logging cannot go on: the integration cannot tell what a boundary has to hold. Tried again as after any failure."""
        if self.is_writer:
            self._suspend(error)

    def observe_step(self, seconds: float) -> None:
        """Tell what a bare optimizer step takes: what redoing one will, until a recovery has measured it."""
        if not self._is_replay_measured:
            known = self.replay_seconds_per_step
            self.replay_seconds_per_step = seconds if known == 0.0 else 0.9 * known + 0.1 * seconds

    def observe_replay(self, seconds_per_step: float) -> None:
        """Tell what a redone step took."""
        self.replay_seconds_per_step, self._is_replay_measured = seconds_per_step, True

    def reserve(self, nbytes: int) -> None:
        """Tell how large a snapshot will be (optimizer state appears with the first step); its memory is got ahead."""
        self._disk_space.expect(nbytes)
        if self._checkpointer is not None and nbytes > RESERVE_BYTES_MIN:
            self._checkpointer.reserve(nbytes + nbytes // 16)

    @gated
    def checkpoint(self, snapshot: Snapshot, *, wait: bool = False) -> bool:
        """Take a checkpoint of the state at the last boundary; False if one is being written, or logging is suspended."""
        wal, checkpointer = self._started(), self._checkpointer
        if wal is None or checkpointer is None or (checkpointer.is_busy and not wait):
            return False
        checkpointer.wait()
        if self._handover is not None:
            self._handover.drain()
            if self._handover.failure is not None:  # the boundary that the snapshot is of did not get into the log
                self._suspend(self._handover.failure)
                return False
        self._schedule.taken(self.step, wal.bytes_written)
        try:
            wal.forget_definitions()  # what follows must not need what came before
            checkpointer.take(snapshot, wal.boundary, self.adapt, wait=wait)
        except _FAILURES as error:
            checkpointer.failure = error
        return checkpointer.is_busy or not self._has_checkpoint_failed()

    def _started(self) -> WriteAheadLog | None:
        """The log to write to; None while suspended, in a forked child, and after `close`."""
        if not self.is_writer:
            return None
        self.start()
        return self._wal

    def _append(self, kind: EntryKind, payload: Payload, body: dict[str, Any], digests: bytes = b"",
                scalars: Scalars | None = None) -> None:  # fmt: skip
        if self._started() is None:
            return
        assert self._writer is not None
        try:
            self._writer.append(kind, self.step, payload, body, digests, self.adapt, scalars)
        except _FAILURES as error:
            self._suspend(error)

    # Checkpoints.

    def is_checkpoint_due(self) -> bool:
        """What the policy says, for whoever decides on its own (`boundary(checkpoint=...)`)."""
        return self._checkpointer is not None and self._is_checkpoint_due()

    def _is_checkpoint_due(self) -> bool:
        assert self._checkpointer is not None
        self._has_checkpoint_failed()
        if self._wal is None or self._checkpointer.is_busy:
            return False
        speeds = self.replay_seconds_per_step, self.load_seconds
        is_full = self._disk_space.is_asked()
        return is_full or self._schedule.is_due(self.step, self._wal.bytes_written, *speeds) or self._schedule.is_requested()

    def _has_checkpoint_failed(self) -> bool:
        """Whether the last checkpoint could not be written. Without any other one the log alone recovers nothing."""
        assert self._checkpointer is not None
        failure, self._checkpointer.failure = self._checkpointer.failure, None
        if failure is None:
            return False
        try:
            has_other = bool(self.catalog.checkpoints())
        except CorruptCatalog as error:
            has_other, failure = False, error
        if not has_other:
            self._suspend(failure)
        elif not self._has_said_failed:  # once, until one succeeds
            self._has_said_failed = True
            _log.warning("%s: a checkpoint could not be written (%s); the log goes on from the one before, and the next "
                         "checkpoint is tried when it is due", self.paths.folder, error_text(failure))  # fmt: skip
        return True

    def _published(self, row: CheckpointRow) -> None:
        """In the checkpoint's thread: drop what the policy no longer keeps."""
        _log.info("%s: checkpoint of step %d published (%d bytes)", self.paths.folder, row.step, row.nbytes)
        self.load_seconds, self.checkpoint_step = self.load_seconds or row.seconds, row.step
        self._has_said_failed = False
        if self._is_unpruned:
            return
        try:
            retire(self.catalog, self.paths.checkpoints, self.retention)
            if self._disk_space.is_made_now():
                self._give_up_older()
        except Exception as error:  # the policy may be the user's own
            _log.warning("%s: what is no longer kept could not be deleted (%s: %s); the next checkpoint tries it again",
                         self.paths.folder, type(error).__name__, error)  # fmt: skip

    def _give_up_older(self) -> bool:
        """On a full disk, where a number of checkpoints is to be kept: only the newest stays; whether another one went.

        A training that is protected by one checkpoint and its log is better off than one that two protect up to where the
        space ended.
        """
        fewest = when_full(self.retention)
        if fewest is None or self._is_unpruned:
            return False
        gone = retire(self.catalog, self.paths.checkpoints, fewest).checkpoints
        if gone:
            _log.log(logging.INFO if self._has_said_full else logging.WARNING,
                     "%s: the disk is full. Of the checkpoints that are to be kept the newest alone is, while that is so: "
                     "the next ones take the space of the others", self.paths.folder)  # fmt: skip
            self._has_said_full = True
        return bool(gone)

    # Failures.

    def _suspend(self, error: BaseException) -> None:
        """Stop logging, say so once, and let training go on."""
        self._shut(truncates=False)  # on a full disk, a file of full size can be used again
        now = self.clock.monotonic()
        if self._suspension is None:
            self._suspension = Suspension.begin(error_text(error), self.step, self.clock.now(), now, self._ended)
            _log.warning(
                "%s: logging is suspended at step %d: %s. Training goes on; a crash now would go back to step %d. Logging "
                "resumes by itself, from a fresh checkpoint, when %s",
                self.paths.folder, self.step, error_text(error), self._committed,
                "that is gone" if isinstance(error, UnencodableState) else "the disk can be written again",
            )  # fmt: skip
        else:  # a try to resume failed
            self._suspension.postpone(now)
            _log.debug("%s: logging cannot go on yet: %s", self.paths.folder, error)
        try:
            note_incident(self.catalog, self._suspension)
            # Not before it has begun to write: only then the catalog tells where it goes on.
            if is_disk_full(error) and self._checkpointer is not None and self._give_up_older():
                self._suspension.next_try = now
        except _FAILURES as second:
            _log.debug("the incident could not be recorded: %s", second)

    def _shut(self, *, truncates: bool = True) -> BaseException | None:
        """End the log as well as possible and remember how far it came; gives what went wrong."""
        wal = self._wal
        failure: BaseException | None = None
        if self._handover is not None:
            failure = self._handover.reset()
        if wal is not None:
            try:
                wal.close(truncates=truncates)
            except _FAILURES as error:
                failure = failure or error
            self._frontier = wal.position
            if wal.counts:
                self._committed, self._synced = wal.boundary.step, wal.synced.step
        self._wal = self._writer = None  # only now: an interrupted end is done again
        return failure

    def _try_to_resume(self, body: dict[str, Any], snapshot: Callable[[], Snapshot]) -> None:
        suspension = self._suspension
        assert suspension is not None
        if self.clock.monotonic() < suspension.next_try:
            return
        if self._checkpointer is not None and self._checkpointer.is_busy:
            return
        # The chain starts anew: nothing links the log behind the gap with the log before it but the checkpoint.
        position = Position(self._frontier.sequence + 1, self.step, secrets.randbits(64), self._frontier.timeline)
        try:
            if self._checkpointer is None:
                self._position = position
                self._start_writing()
                self._take_segment()
                self._take_fresh(position, snapshot)
            else:
                seal_abandoned_segments(self.paths, self.catalog, sync=False)
                self._begin_anew(position, snapshot)
            assert self._wal is not None
            self._wal.append(EntryKind.BOUNDARY, self.step, NO_TENSORS, self._wal.encoder.parts(body, self.adapt))
            if not self._wal.wait_synced():  # entries can be written and made durable again, too
                raise LogUnavailable(error_text(self._wal.failure) if self._wal.failure else "the log cannot be synced")
            end_incident(self.catalog, self.step, self.clock.now(), suspension)
        except _FAILURES as error:
            self._suspend(error)
            return
        self._wal.counts = True
        suspension.end(self.clock.monotonic())
        self._suspension, self._ended = None, suspension
        self._schedule.taken(self.step, 0)
        _log.warning("%s: logging goes on from a fresh checkpoint at step %d", self.paths.folder, self.step)

    def _begin_anew(self, position: Position, snapshot: Callable[[], Snapshot]) -> None:
        """A log file, then a fresh checkpoint; where the log so far is what fills the disk, the other way round."""
        try:
            self._open_anew(position)
        except _FAILURES as error:
            if not is_disk_full(error) or not self._disk_space.is_in_the_log():
                raise
            self._shut()
            self._take_fresh(position, snapshot)
            self._committed = self._synced = position.step
            self._give_up_older()
            self._open_anew(position)
        else:
            self._take_fresh(position, snapshot)

    def _open_anew(self, position: Position) -> None:
        """Retired files are used again. Where none fits, and the disk is full, they make room."""
        self._open_log(position, counts=False)
        try:
            self._take_segment()
        except _FAILURES as error:
            if not is_disk_full(error) or not unlink_retired(self.catalog, self.paths.log):
                raise
            self._shut()
            self._open_log(position, counts=False)
            self._take_segment()

    def _take_segment(self) -> None:
        """The disk has room for a log, then."""
        assert self._wal is not None
        self._wal.begin(NO_TENSORS).abort()

    def _take_fresh(self, position: Position, snapshot: Callable[[], Snapshot]) -> None:
        assert self._checkpointer is not None
        self._checkpointer.take(snapshot(), position, self.adapt, wait=True)
        if self._checkpointer.failure is not None:
            raise LogUnavailable(error_text(self._checkpointer.failure)) from self._checkpointer.failure

    # The end.

    def wait_synced(self, timeout: float = 60.0) -> bool:
        """Wait until all that is committed survives power loss."""
        if self._handover is not None:
            self._handover.drain()
        return self._wal is None or self._wal.wait_synced(timeout)

    def secure(self, timeout: float) -> bool:
        """From any thread: seal and sync what is committed, while training goes on; False if that did not succeed in time."""
        wal = self._wal
        try:
            if wal is not None and os.getpid() == self._pid:
                wal.demand_sync()
                wal.seal_now()
                return wal.wait_synced(timeout)
        except _FAILURES as error:
            _log.debug("%s: the log could not be synced: %s", self.paths.folder, error)
            return False
        return True

    def part(self, timeout: float) -> bool:
        """From any thread, as the process is about to end: seal and sync what is committed, and drop a step that is not at its
        end. Who calls the journal from now on waits for ever. False if not all could be sealed in time: then it is synced, if
        that is possible."""
        if not self.gate.shut(timeout / 2):
            self.secure(timeout / 2)
            return False
        if self._closed:
            return True
        if self._wal is not None:
            self._wal.demand_sync()
        failure = self._shut()
        self._lock.mark_closed()
        return failure is None

    def wait_checkpoint(self) -> None:
        """Wait for the checkpoint that is being written."""
        if self._checkpointer is not None:
            self._checkpointer.wait()

    @gated
    def close(self) -> None:
        """Seal and sync the log, wait for the checkpoint, give the lock back. Uncommitted records are dropped.

        Ctrl-C meanwhile comes through when this is done. A second one comes through at once; `close` may be called again then.
        """
        atexit.unregister(self.close)
        if not self._lock.is_held or os.getpid() != self._pid:
            return
        self._closed = True
        run_uninterrupted("tranlogs-end", self._end)

    def _end(self) -> None:
        with self._ending:
            if self._lock.is_held:
                self._end_once()

    def _end_once(self) -> None:
        try:
            failure = self._shut()
            if self._handover is not None:
                self._handover.stop()
            self.wait_checkpoint()
        finally:
            self.catalog.close()
            self._lock.release()
        if self._suspension is not None:
            _log.warning("%s: closed while logging was suspended; steps after %d are lost", self.paths.folder, self._committed)
        elif failure is not None:
            _log.warning("%s: the log could not be closed cleanly: %s; steps up to %d are safe", self.paths.folder, failure,
                         self._committed)  # fmt: skip
        else:
            _log.info("%s: closed; steps up to %d are safe", self.paths.folder, self._committed)
