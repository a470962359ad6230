"""The parts of a journal that one process writes, and their state."""

from __future__ import annotations

from ..base.clock import Clock
from ..base.config import JournalConfig
from ..encoding import tree
from ..retention import CheckpointPolicy, RetentionPolicy
from .checkpointing.journal_checkpoints import JournalCheckpoints
from .checkpointing.recovery_speed import RecoverySpeed
from .opening import OpenedJournal
from .ownership.request_service import RequestService
from .ownership.shutdown_gate import ShutdownGate
from .ownership.writer_process import WriterProcess
from .pruning_holds import PruningHolds
from .writing.record_writers import Writer
from .writing.start import WritingStart
from .writing.suspendable_log import SuspendableLog
from .writing.suspension_handler import SuspensionHandler


class JournalState:
    """The parts of a journal that one process writes, with read-only properties. `Journal` adds the methods that write.

    The class joins all parts of a journal, so it has more attributes than other classes.

    Attributes:
        paths: the journal's folders.
        catalog: the journal's catalog, open for writing.
        run: row of the run in the catalog.
        config: durability and sizes.
        clock: returns the time.
        notes: what had to be repaired when the run was opened.
        step: optimizer updates applied so far.
        is_fresh: True if the journal holds nothing to recover from.
        adapt: turns a framework's values into arrays; set by an integration.
        gate: passed by each method that writes.
        holds: keep monitors, and this process, from pruning.
        log: the log, which is closed while logging is suspended.
        checkpoints: decide when a checkpoint is taken, and what is pruned afterwards.
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
        self.log = SuspendableLog(opened, config, clock, self.checkpoints.disk_space)
        syncs = config.durability == "machine"
        self._start = WritingStart(opened, clock, self.holds, self.log, self.checkpoints, syncs=syncs)
        self._suspensions = SuspensionHandler(opened, clock, self.log, self.checkpoints, self._start)
        self._requests = RequestService(catalog)
        self._recheck_writer: Writer | None = None  # takes the records while a unit is computed again

    @property
    def timeline(self) -> int:
        """The timeline that the next record belongs to."""
        return self.log.end.timeline

    @property
    def is_suspended(self) -> bool:
        """True while logging is suspended, because the disk is full or fails."""
        return self._suspensions.current is not None

    @property
    def is_rechecking(self) -> bool:
        """True while a unit is computed again, so that nothing is logged."""
        return self._recheck_writer is not None

    @property
    def is_closed(self) -> bool:
        """True once `close` was called."""
        return self._process.is_closed

    @property
    def was_finished(self) -> bool:
        """True if the process that wrote the journal before came to the end of its script."""
        former = self._process.lock.former
        return former is not None and former.has_finished

    @property
    def former_loop_end(self) -> str:
        """The place at which that script left its loop; see `Journal.note_finished`."""
        former = self._process.lock.former
        return former.loop_end if former is not None else ""

    @property
    def is_writer(self) -> bool:
        """False in a forked child, and after `close`: nothing is logged there."""
        return not self._process.is_closed and self._process.is_caller

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
