"""Checkpoints of a journal: the thread that writes them, the disk space for them, and what is pruned afterwards.

A snapshot of the state is copied on the training thread (one memcpy), and written in the background.

A checkpoint makes the log before it unnecessary and frees its space, but a checkpoint needs space itself. The log therefore
leaves room for a checkpoint. If no new segment can be created, the log requests a checkpoint before one is due.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..base.atomic_files import is_disk_full
from ..base.clock import Clock
from ..base.config import MIB, RESERVE_BYTES_MIN
from ..base.errors import (
    SUSPENDING_ERRORS,
    CatalogUnavailable,
    CorruptCatalog,
    CorruptCheckpoint,
    LogUnavailable,
    RunLost,
    TranLogsError,
    error_text,
)
from ..base.failpoints import hit
from ..base.threads import start_thread
from ..catalog import Catalog, CheckpointRow
from ..checkpoints import Checkpoint, Snapshot, SnapshotPool, checkpoint_name, write_checkpoint
from ..checkpoints.folder import MANIFEST
from ..encoding.tree import Adapt
from ..log.record_format import Position
from ..log.writer import WriteAheadLog
from ..retention import CheckpointPolicy, RetentionPolicy
from ..retention.keep_policy import when_full
from ..retention.prune import retire
from .checkpoint_schedule import CheckpointSchedule, Measurements, RecoverySpeed
from .opening import OpenedJournal
from .pruning_holds import PruningHolds

_log = logging.getLogger("tranlogs")

_JOIN_SECONDS = 0.1  # between two looks at whether a foreign process holds the catalog
_GROWTH_MAX = 4  # The first steps create the optimizer's state: Adam with amsgrad adds three times the weights.


class JournalCheckpoints:
    """The checkpoints of one journal that this process writes, one at a time.

    Attributes:
        is_started: True once the process has begun to write.
        newest_step: step of the newest checkpoint that was published, or that recovery started from.
        has_warned_full: True once the warning was logged that only the newest checkpoint is kept.
    """

    def __init__(
        self,
        opened: OpenedJournal,
        clock: Clock,
        policy: CheckpointPolicy,
        retention: RetentionPolicy,
        holds: PruningHolds,
    ) -> None:
        self._opened, self._clock, self._retention, self._holds = opened, clock, retention, holds
        self.measurements = Measurements(opened.catalog, clock, opened.lock.former)
        self.schedule = CheckpointSchedule(policy, opened.catalog, clock, self.measurements)
        self.disk_space = DiskSpace(opened.catalog, retention, lambda: holds.keeps_all)
        self.speed = RecoverySpeed(self.measurements.row)
        self.is_started = False
        self.taken = 0
        self._about: dict[str, Any] = {}  # description of the run for the manifests
        self.newest_step, self._newest = 0, ""  # step and name
        self._has_warned_failed = self.has_warned_full = False
        self._pool = SnapshotPool()
        self._thread: threading.Thread | None = None
        self._is_ending = threading.Event()
        self._is_background = False
        self._failure: BaseException | None = None  # why the last checkpoint could not be written

    def start(self, position: Position) -> None:
        """Let checkpoints be taken, from now on on the timeline of `position`."""
        self._about, self.is_started = self._opened.describe(position), True
        self.measurements.begin()
        self.schedule.note_start(position.step)

    @property
    def is_busy(self) -> bool:
        """True while a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    # Taking.

    def note_recovery(self, row: CheckpointRow, log_bytes: int) -> None:
        """Record the checkpoint that recovery started from, and how much of the log after that checkpoint was read.

        Both count towards the next checkpoint, so that a run that crashes often still takes checkpoints.
        """
        self.newest_step = row.step
        if self._is_at_place(row.name):  # else it is another rank's
            self._newest = row.name
        self.schedule.note_size(row.nbytes)
        self.schedule.note_taken(row.step, -log_bytes, max(0.0, self._clock.now() - row.created_at))

    def expect_snapshot(self, nbytes: int) -> None:
        """Record the expected size of a snapshot, and allocate memory for it in the background."""
        self.disk_space.expect_snapshot(nbytes)
        self.schedule.note_size(nbytes)
        if self.is_started and nbytes > RESERVE_BYTES_MIN and not self.is_busy:
            try:
                self._thread = start_thread("tranlogs-reserve", self._reserve, nbytes + nbytes // 16)
            except LogUnavailable as error:
                _log.debug("could not allocate memory for snapshots ahead of time: %s", error)

    def _reserve(self, nbytes: int) -> None:
        try:
            self._pool.reserve(nbytes)
        except MemoryError as error:
            _log.debug("could not allocate memory for snapshots ahead of time: %s", error)

    def is_due(self, step: int, log_bytes: int) -> bool:
        """Return True if a checkpoint is due at `step`, after `log_bytes` of log."""
        if self._thread is not None and self._thread.is_alive():
            return False
        is_full = self.disk_space.is_requested and self.disk_space.take_request()
        return is_full or self.schedule.is_due(step, log_bytes, self.speed) or self.schedule.is_requested()

    def take(self, snapshot: Snapshot, step: int, wal: WriteAheadLog, adapt: Adapt | None, *, wait: bool) -> None:
        """Take a checkpoint of the state at the log's newest boundary. An error is kept for `take_failure`."""
        assert self.is_started
        self.schedule.measure(step, self.speed, wal, is_whole=True)
        self.schedule.note_taken(step, wal.bytes_written)
        self.taken += 1
        start = self._clock.monotonic()
        try:
            wal.forget_definitions()  # Later records must not refer to records that may be pruned after the checkpoint.
            self._copy_and_write(snapshot, wal.group.boundary, adapt, wait=wait)
            if not wait:
                self.schedule.stall_seconds = self._clock.monotonic() - start
                self.measurements.note(stall_seconds=self.schedule.stall_seconds)
        except SUSPENDING_ERRORS as error:
            self._failure = error

    def take_recomputed(self, snapshot: Snapshot, position: Position, adapt: Adapt | None) -> None:
        """Take a checkpoint of the state at a position that the log has already. An error is kept for `take_failure`."""
        self.schedule.note_taken(position.step, 0)
        try:
            self._copy_and_write(snapshot, position, adapt, wait=False)
        except SUSPENDING_ERRORS as error:
            self._failure = error

    def take_now(self, snapshot: Snapshot, position: Position, adapt: Adapt | None) -> None:
        """Take a checkpoint of the state at a position, and wait until it is published.

        Raises:
            LogUnavailable: the checkpoint could not be written.
        """
        assert self.is_started
        self._copy_and_write(snapshot, position, adapt, wait=True)
        if self._failure is not None:
            raise LogUnavailable(error_text(self._failure)) from self._failure

    def wait(self) -> None:
        """Wait for the checkpoint that is being written, unless a foreign process holds the catalog."""
        while self._thread is not None and self._thread.is_alive() and not self._opened.catalog.is_held:
            self._thread.join(_JOIN_SECONDS)

    def close(self) -> BaseException | None:
        """Wait as `wait` does, and end the thread. Return why the last checkpoint is not in the catalog; None if it is."""
        self.wait()
        self._is_ending.set()
        if self._thread is not None:
            self._thread.join()
        return self._failure

    # Writing.

    def _copy_and_write(self, snapshot: Snapshot, position: Position, adapt: Adapt | None, *, wait: bool) -> None:
        """Copy a snapshot of the state at `position`, and write it in the background, or in this thread if `wait` is True."""
        assert not self.is_busy
        hit("checkpoint.snapshot")
        self._failure, self._is_background = None, not wait
        snapshot.encode(adapt)
        self._pool.hold(snapshot)
        if wait:
            self._write(snapshot, position)
        else:
            self._thread = start_thread("tranlogs-checkpoint", self._write, snapshot, position)

    def _write(self, snapshot: Snapshot, position: Position) -> None:
        start = self._clock.monotonic()
        name = checkpoint_name(position.step, position.timeline, position.sequence)
        about = {
            **self._about,
            "step": position.step,
            "sequence": position.sequence,
            "chain": f"{position.chain:016x}",
            "timeline": position.timeline,
            "created_at": self._clock.now(),
        }
        try:
            self._opened.lock.demand()
            if self._has(name, position):
                return
            nbytes = self._write_folder(name, snapshot, about)
            self.schedule.writing_seconds = seconds = self._clock.monotonic() - start
            self.measurements.note(writing_seconds=seconds)
            row = CheckpointRow(
                name, position.step, position.sequence, about["chain"], position.timeline, nbytes, about["created_at"], seconds
            )
            with self._opened.catalog.transaction(self._is_patient) as tables:  # commit point: the checkpoint counts
                tables.put(f"checkpoint/{name}", row)
            self._note_published(row)
        except Exception as error:  # The journal checks for a failure at the next boundary.
            self._failure = error

    def _write_folder(self, name: str, snapshot: Snapshot, about: dict[str, Any]) -> int:
        """Write a checkpoint and return its size in bytes. If the disk is full, make room and try once more."""
        try:
            return self._write_at_place(name, snapshot, about)
        except OSError as error:
            if not is_disk_full(error) or not self.retire_older():
                raise
            return self._write_at_place(name, snapshot, about)

    def _write_at_place(self, name: str, snapshot: Snapshot, about: dict[str, Any]) -> int:
        place = self._find_place()
        try:
            return write_checkpoint(place, name, snapshot, about)
        except OSError as error:
            if error.filename is not None:
                error.filename = str(error.filename).replace(str(place), str(self._opened.paths.checkpoints))
            raise

    def _find_place(self) -> Path:
        """Return the folder for writing and deleting. Another run may lie at its path, with a checkpoint of the same name."""
        return self._opened.lock.find_place() / self._opened.paths.checkpoints.name

    def _has(self, name: str, position: Position) -> bool:
        """Return True if this checkpoint is published and sound. Delete its folder if not: it is damaged, or was not listed,
        or belongs to a history that was lost.
        """
        if any(row.name == name for row in self._opened.catalog.checkpoints()):
            with suppress(CorruptCheckpoint), Checkpoint(self._opened.paths.checkpoints / name) as found:
                if found.chain == position.chain and all(damage is None for _, damage in found.verify()):
                    return True
        shutil.rmtree(self._find_place() / name, ignore_errors=True)
        return False

    def _is_patient(self) -> bool:
        """Return True as long as the thread can wait for a process that holds LMDB's write lock."""
        return self._is_background and not self._is_ending.is_set()

    # Failures.

    def demand_newest(self) -> None:
        """Check that nobody has deleted the newest checkpoint. Without it, the log that follows it is of no use.

        Raises:
            RunLost: it was deleted.
        """
        name = self._newest
        if name and not self._is_at_place(name) and name == self._newest:  # else a newer one was published, and it was retired
            self._newest = ""
            raise RunLost(
                f"{self._opened.paths.checkpoints / name} was deleted while the run was written",
                "no files of the run are deleted",
                loss="what was logged since the last checkpoint that is left",
            )

    def _is_at_place(self, name: str) -> bool:
        return (self._opened.paths.checkpoints / name / MANIFEST).exists()

    def take_failure(self) -> BaseException | None:
        """Return, once, why the last checkpoint could not be written; None if it was written."""
        failure, self._failure = self._failure, None
        return failure

    def as_fatal(self, failure: BaseException) -> BaseException | None:
        """Return the error that ends logging after a failed checkpoint; None if there is an older checkpoint.

        Nothing can be recovered from the log without a checkpoint.
        """
        try:
            if not self._opened.catalog.checkpoints():
                return failure
        except (CorruptCatalog, CatalogUnavailable) as error:
            return error
        if not self._has_warned_failed:  # warn once, until a checkpoint is written
            self._has_warned_failed = True
            _log.warning(
                "%s: a checkpoint could not be written (%s). The log continues from the previous checkpoint; the next "
                "attempt is made when the next checkpoint is due",
                self._opened.paths.folder,
                error_text(failure),
            )
        return None

    # After a checkpoint was published.

    def _note_published(self, row: CheckpointRow) -> None:
        """Retire checkpoints and segments that the policy no longer keeps. Called in the thread that writes checkpoints."""
        _log.info("%s: checkpoint of step %d published (%d bytes)", self._opened.paths.folder, row.step, row.nbytes)
        self.schedule.note_size(row.nbytes)  # also holds what the integration did not expect, as tracked state
        self.speed.load_seconds, self.newest_step = self.speed.load_seconds or row.seconds, row.step
        self._newest = row.name
        self._has_warned_failed = False
        if self._holds.keeps_all:
            return
        try:
            self._opened.lock.demand()
            retire(self._opened.catalog, self._opened.paths.checkpoints, self._retention)
            if self.disk_space.take_published():
                self.retire_older()
        except CatalogUnavailable as error:  # A foreign process holds the catalog, which warns of it itself.
            _log.debug("%s: could not delete expired segments and checkpoints: %s", self._opened.paths.folder, error)
        except Exception as error:  # the policy may be the user's own
            _log.warning(
                "%s: could not delete expired segments and checkpoints (%s: %s); retrying at the next checkpoint",
                self._opened.paths.folder,
                type(error).__name__,
                error,
            )

    def retire_older(self) -> bool:
        """Retire all checkpoints but the newest, because the disk is full; return True if one was retired.

        This is done only if the policy keeps a number of checkpoints. One checkpoint with a log that continues protects more
        steps than two checkpoints with a log that ended when the disk was full.
        """
        fewest = when_full(self._retention)
        if fewest is None or self._holds.keeps_all or self._opened.lock.find_loss() is not None:
            return False
        retired = retire(self._opened.catalog, self._opened.paths.checkpoints, fewest).checkpoints
        if retired:
            _log.log(
                logging.INFO if self.has_warned_full else logging.WARNING,
                "%s: the disk is full: until there is space again, only the newest checkpoint is kept, and each new "
                "checkpoint replaces an older one",
                self._opened.paths.folder,
            )
            self.has_warned_full = True
        return bool(retired)


class DiskSpace:
    """The space that a journal leaves free for a checkpoint, and the request for a checkpoint that frees space.

    Args:
        retention: which checkpoints are kept. If that frees no log, no space is left and no checkpoint is requested.

    Attributes:
        is_requested: True if a checkpoint was requested, and not taken yet.
        has_warned: True once the warning about a full disk was logged.
    """

    def __init__(self, catalog: Catalog, retention: RetentionPolicy, keeps_all: Callable[[], bool]) -> None:
        self._catalog, self._retention, self._keeps_all = catalog, retention, keeps_all
        self._snapshot_bytes = 0
        self.is_requested = False
        self._is_taking = False  # the next checkpoint to be published was requested
        self.has_warned = False

    def expect_snapshot(self, nbytes: int) -> None:
        """Note how large a snapshot will be."""
        self._snapshot_bytes = nbytes

    def has_sealed_segments(self) -> bool:
        """Return True if a checkpoint would free sealed segments."""
        return self._may_free("sealed")

    def _may_free(self, *states: str) -> bool:
        """Return True if there is a segment in one of these states, and it may be pruned."""
        if when_full(self._retention) is None or self._keeps_all():
            return False
        return any(row.state in states for row in self._catalog.segments())

    def bytes_for_checkpoint(self) -> int:
        """Return how much space new segments, except the first one, must leave free. Called in the preallocator's thread."""
        if not self._may_free("ready", "open", "sealed"):
            return 0
        known = [row.nbytes * (1 if row.step else _GROWTH_MAX) for row in self._catalog.checkpoints()]
        return max([*known, self._snapshot_bytes]) * 17 // 16 + MIB if known else 0

    def request_checkpoint(self) -> None:
        """Request a checkpoint, because no new segment can be created. Called in the preallocator's thread."""
        self.is_requested = True

    def take_request(self) -> bool:
        """Return True, once for each request, if a checkpoint must be taken now to free segments."""
        if not self.is_requested:
            return False
        try:
            is_requested = self.has_sealed_segments()
        except TranLogsError:
            return False
        if is_requested:
            self.is_requested, self._is_taking = False, True
            _log.log(
                logging.INFO if self.has_warned else logging.WARNING,
                "%s: the log after the last checkpoint fills the disk: checkpoints are taken before they are due. Free "
                "disk space, or take checkpoints more often",
                self._catalog.path.parent,
            )
            self.has_warned = True
        return is_requested

    def take_published(self) -> bool:
        """Return True, once, if the checkpoint that was just published had been requested."""
        is_taking, self._is_taking = self._is_taking, False
        return is_taking
