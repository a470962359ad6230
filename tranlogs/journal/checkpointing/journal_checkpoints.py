"""The checkpoints of a journal: when they are taken, what is pruned afterwards, and what happens when one fails."""

from __future__ import annotations

import logging

from ...base.clock import Clock
from ...base.config import RESERVE_BYTES_MIN
from ...base.errors import CatalogUnavailable, CorruptCatalog, LogUnavailable, error_text
from ...catalog import CheckpointRow
from ...checkpoints import Snapshot
from ...encoding import tree
from ...log.record_format import Position
from ...log.writer import WriteAheadLog
from ...retention import CheckpointPolicy, RetentionPolicy
from ...retention.keep_policy import when_full
from ...retention.prune import retire
from ..opening import OpenedJournal
from ..pruning_holds import PruningHolds
from ..suspending_errors import SUSPENDING_ERRORS
from .checkpointer import Checkpointer
from .disk_space import DiskSpace
from .recovery_speed import RecoverySpeed
from .schedule import CheckpointSchedule

_log = logging.getLogger("tranlogs")


class JournalCheckpoints:
    """The checkpoints of one journal that this process writes.

    Attributes:
        schedule: decides when the next checkpoint is due.
        disk_space: the space that the log leaves free for a checkpoint.
        speed: estimates of how long a recovery takes.
        checkpointer: writes checkpoints; None until the process begins to write.
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
        self._paths, self._catalog, self._opened, self._clock = opened.paths, opened.catalog, opened, clock
        self._retention, self._holds = retention, holds
        self.schedule = CheckpointSchedule(policy, opened.catalog, clock)
        self.disk_space = DiskSpace(opened.catalog, retention, lambda: holds.keeps_all)
        self.speed = RecoverySpeed()
        self.checkpointer: Checkpointer | None = None
        self.newest_step = 0
        self._has_warned_failed = self.has_warned_full = False

    def start(self, position: Position) -> None:
        """Create the checkpointer. From now on, checkpoints are taken on the timeline of `position`."""
        about = self._opened.describe(position)
        self.checkpointer = Checkpointer(
            self._paths.checkpoints,
            self._catalog,
            self._clock,
            about,
            self._opened.lock,
            self._note_published,
            self.retire_older,
        )

    @property
    def is_started(self) -> bool:
        """True once the process has begun to write."""
        return self.checkpointer is not None

    @property
    def is_busy(self) -> bool:
        """True while a checkpoint is being written."""
        return self.checkpointer is not None and self.checkpointer.is_busy

    # Taking.

    def note_recovery(self, row: CheckpointRow, log_bytes: int) -> None:
        """Record the checkpoint that recovery started from, and how much of the log after that checkpoint was read.

        Both count towards the next checkpoint, so that a run that crashes often still takes checkpoints.
        """
        self.newest_step = row.step
        self.schedule.note_size(row.nbytes)
        self.schedule.note_taken(row.step, -log_bytes, max(0.0, self._clock.now() - row.created_at))

    def expect_snapshot(self, nbytes: int) -> None:
        """Record the expected size of a snapshot, and allocate memory for it in the background."""
        self.disk_space.expect_snapshot(nbytes)
        self.schedule.note_size(nbytes)
        if self.checkpointer is not None and nbytes > RESERVE_BYTES_MIN:
            self.checkpointer.reserve(nbytes + nbytes // 16)

    def is_due(self, step: int, log_bytes: int) -> bool:
        """Return True if a checkpoint is due at `step`, after `log_bytes` of log."""
        if self.is_busy:
            return False
        is_full = self.disk_space.take_request()
        return is_full or self.schedule.is_due(step, log_bytes, self.speed) or self.schedule.is_requested()

    def take(self, snapshot: Snapshot, step: int, wal: WriteAheadLog, adapt: tree.Adapt | None, *, wait: bool) -> None:
        """Take a checkpoint of the state at the log's newest boundary. An error is kept for `take_failure`."""
        assert self.checkpointer is not None
        self.schedule.note_taken(step, wal.bytes_written)
        try:
            wal.forget_definitions()  # Later records must not refer to records that may be pruned after the checkpoint.
            self.checkpointer.take(snapshot, wal.boundary, adapt, wait=wait)
        except SUSPENDING_ERRORS as error:
            self.checkpointer.failure = error

    def take_now(self, snapshot: Snapshot, position: Position, adapt: tree.Adapt | None) -> None:
        """Take a checkpoint of the state at a position, and wait until it is published.

        Raises:
            LogUnavailable: the checkpoint could not be written.
        """
        assert self.checkpointer is not None
        self.checkpointer.take(snapshot, position, adapt, wait=True)
        if self.checkpointer.failure is not None:
            raise LogUnavailable(error_text(self.checkpointer.failure)) from self.checkpointer.failure

    def wait(self) -> None:
        """Wait for the checkpoint that is being written, unless a foreign process holds the catalog."""
        if self.checkpointer is not None:
            self.checkpointer.wait()

    def close(self) -> BaseException | None:
        """Wait as `wait` does, and end the thread. Return why the last checkpoint is not in the catalog; None if it is."""
        return None if self.checkpointer is None else self.checkpointer.close()

    # Failures.

    def take_failure(self) -> BaseException | None:
        """Return, once, why the last checkpoint could not be written; None if it was written."""
        checkpointer = self.checkpointer
        if checkpointer is None or checkpointer.failure is None:
            return None
        failure, checkpointer.failure = checkpointer.failure, None
        return failure

    def as_fatal(self, failure: BaseException) -> BaseException | None:
        """Return the error that ends logging after a failed checkpoint; None if there is an older checkpoint.

        Nothing can be recovered from the log without a checkpoint.
        """
        try:
            if not self._catalog.checkpoints():
                return failure
        except (CorruptCatalog, CatalogUnavailable) as error:
            return error
        if not self._has_warned_failed:  # warn once, until a checkpoint is written
            self._has_warned_failed = True
            _log.warning(
                "%s: a checkpoint could not be written (%s). The log continues from the previous checkpoint; the next "
                "attempt is made when the next checkpoint is due",
                self._paths.folder,
                error_text(failure),
            )
        return None

    # After a checkpoint was published.

    def _note_published(self, row: CheckpointRow) -> None:
        """Retire checkpoints and segments that the policy no longer keeps. Called in the checkpointer's thread."""
        _log.info("%s: checkpoint of step %d published (%d bytes)", self._paths.folder, row.step, row.nbytes)
        self.schedule.note_size(row.nbytes)  # also holds what the integration did not expect, as tracked state
        self.speed.load_seconds, self.newest_step = self.speed.load_seconds or row.seconds, row.step
        self._has_warned_failed = False
        if self._holds.keeps_all:
            return
        try:
            self._opened.lock.demand()
            retire(self._catalog, self._paths.checkpoints, self._retention)
            if self.disk_space.take_published():
                self.retire_older()
        except CatalogUnavailable as error:  # A foreign process holds the catalog, which warns of it itself.
            _log.debug("%s: could not delete expired segments and checkpoints: %s", self._paths.folder, error)
        except Exception as error:  # the policy may be the user's own
            _log.warning(
                "%s: could not delete expired segments and checkpoints (%s: %s); retrying at the next checkpoint",
                self._paths.folder,
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
        retired = retire(self._catalog, self._paths.checkpoints, fewest).checkpoints
        if retired:
            _log.log(
                logging.INFO if self.has_warned_full else logging.WARNING,
                "%s: the disk is full: until there is space again, only the newest checkpoint is kept, and each new "
                "checkpoint replaces an older one",
                self._paths.folder,
            )
            self.has_warned_full = True
        return bool(retired)
