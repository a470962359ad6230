"""When a checkpoint is due, and what a run measures about itself to decide it.

`tranlogs advise` reads the measurements in the catalog.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any

from ..base.atomic_files import free_bytes
from ..base.clock import Clock
from ..base.config import CATALOG_SECONDS
from ..base.errors import CatalogUnavailable, CorruptCatalog
from ..catalog import Catalog, MeasuredRow
from ..log.writer import WriteAheadLog
from ..retention import Automatic, CheckpointFacts, CheckpointPolicy, EverySteps
from ..retention.checkpoint_interval import log_bytes_max, observe_mtbf
from .owner_lock import Owner

_log = logging.getLogger("tranlogs")

_FALLBACK = EverySteps(500)
_NO_STEP = 1 << 63
_AFFORDABLE = 20  # A checkpoint that nobody needs may cost a twentieth of the time.
_STEPS_MIN = 8  # whose time is measured


class CheckpointSchedule:
    """A checkpoint policy together with the step, the time and the log size of the last checkpoint.

    Attributes:
        state_bytes: the size of a checkpoint; 0 until it is known.
        companion_steps: steps taken in one unit with a step of another optimizer. They do not count as training steps.
        is_recomputed: True if the log has no tensors of steps since the last checkpoint.
        stall_seconds: the time that training stood still for the last checkpoint of this process; 0.0 before.
        writing_seconds: the time that it took to write it.
        budget_bytes: what a monitor allows for the journal.
        due_step: the step from which on one is due, if the policy counts steps; else one that no run reaches.
    """

    def __init__(self, policy: CheckpointPolicy, catalog: Catalog, clock: Clock, known: Measurements) -> None:
        self._policy, self._catalog, self._clock, self._known = policy, catalog, clock, known
        self._request_read_at = 0.0
        self.budget_bytes = 1 << 62
        self.companion_steps = 0
        self.state_bytes = 0
        self.stall_seconds = self.writing_seconds = 0.0
        self.note_taken(0, 0)

    def note_taken(self, step: int, log_bytes: int, seconds_ago: float = 0.0) -> None:
        """Record that a checkpoint was taken at `step`, after `log_bytes` of log."""
        self._step, self._at, self._log_bytes = step, self._clock.monotonic() - seconds_ago, log_bytes
        self.due_step = step + self._policy.steps if isinstance(self._policy, EverySteps) else _NO_STEP
        self._companion_steps_before = self.companion_steps
        self.is_recomputed = False
        self._free_bytes = free_bytes(self._catalog.path.parent)
        self.note_start(step)

    def note_start(self, step: int) -> None:
        """Record that the steps after `step` are taken from now on: their time is measured."""
        self._start_step, self._start_at = step, self._clock.monotonic()

    @property
    def is_affordable(self) -> bool:
        """True if a checkpoint now would cost at most a twentieth of the time since the last one."""
        cost = self.stall_seconds + self.writing_seconds
        return self._clock.monotonic() - self._at >= _AFFORDABLE * cost

    def note_size(self, nbytes: int) -> None:
        """Record the size of a checkpoint: an expected one, or one that was published. The largest counts."""
        self.state_bytes = max(self.state_bytes, nbytes)

    def measure(self, step: int, speed: RecoverySpeed, wal: WriteAheadLog, *, is_whole: bool = False) -> None:
        """Note the time and the bytes of the steps since the last checkpoint, and how far apart checkpoints are.

        Few steps are not as long as others, so they count only while nothing better is known.
        """
        policy, known, seconds = self._policy, self._known.row, self._clock.monotonic() - self._start_at
        found: dict[str, Any] = {
            "log_bytes_max": log_bytes_max(self.state_bytes, self._free_bytes, self.budget_bytes),
            "redo_seconds": speed.replay_seconds_per_step,
            "is_redo_measured": speed.is_replay_measured,
            "load_seconds": speed.load_seconds if speed.is_load_measured else 0.0,
            "mtbf_seconds": (isinstance(policy, Automatic) and policy.mtbf_seconds) or 0.0,
        }
        steps = step - self._start_step
        if steps >= _STEPS_MIN or (steps > 0 and not known.step_seconds):
            found["step_seconds"] = seconds / steps
        if isinstance(policy, Automatic):
            found["interval_seconds"] = None
        elif is_whole and steps > 0:
            found["interval_seconds"] = seconds
        if wal.tensor_layout is not None:
            found["step_bytes"] = wal.tensor_bytes // wal.tensor_records
            has_weights = any(name.startswith("param/") for name in wal.tensor_layout.names)
            found["tensors"] = "weights" if has_weights else "gradients"
        self._known.note(**found)

    def is_due(self, step: int, log_bytes: int, speed: RecoverySpeed) -> bool:
        """Return True if the policy wants a checkpoint at `step`, after `log_bytes` of log."""
        redone = step - self._step
        steps = redone - (self.companion_steps - self._companion_steps_before)
        seconds = self._clock.monotonic() - self._at
        redo = speed.replay_seconds_per_step * (redone / steps if steps > 0 else 1.0)
        facts = CheckpointFacts(
            steps,
            seconds,
            log_bytes - self._log_bytes,
            seconds / steps if self.is_recomputed and steps > 0 else redo,
            speed.load_seconds,
            self.state_bytes,
            self._free_bytes,
            self.stall_seconds or self._known.row.stall_seconds,
            self.writing_seconds or self._known.row.writing_seconds,
            self.is_recomputed,
            self._known.mtbf_seconds,
            self.budget_bytes,
        )
        try:
            return bool(self._policy.is_due(facts))
        except Exception as error:  # An error in a user's policy must not end the training.
            _log.warning(
                "%s: the checkpoint policy failed (%s: %s); from now on a checkpoint is taken every %d steps",
                self._catalog.path,
                type(error).__name__,
                error,
                _FALLBACK.steps,
            )
            self._policy = _FALLBACK
            return _FALLBACK.is_due(facts)

    def is_requested(self) -> bool:
        """Return True if a monitor has requested a checkpoint since the last one.

        The catalog is read at most once in `CATALOG_SECONDS`.
        """
        now = self._clock.monotonic()
        if now - self._request_read_at < CATALOG_SECONDS:
            return False
        self._request_read_at = now
        try:
            request = self._catalog.read(lambda tables: tables.request("checkpoint"))
        except (CorruptCatalog, CatalogUnavailable):
            return False
        return bool(request) and request.get("step", 0) > self._step


class Measurements:
    """What this process and those before it have measured. The sync thread of the log writes it down with its next group.

    The process before, if it has trained, has failed unless its script came to its end: whether it crashed or was ended, the
    steps since its last checkpoint are replayed.

    Attributes:
        row: what is known. It is replaced by another one when something is noted.
    """

    def __init__(self, catalog: Catalog, clock: Clock, former: Owner | None) -> None:
        self._clock = clock
        row: MeasuredRow = catalog.read(lambda tables: tables.get("measured", MeasuredRow)) or MeasuredRow()
        if row.since:
            trained = row.trained_seconds + max(0.0, catalog.watermarks().at - row.since)
            has_failed = former is None or not former.has_finished
            row = replace(row, trained_seconds=trained, failures=row.failures + has_failed, since=0.0)
        self.row = row
        self._lock = threading.Lock()  # checkpoints are written in a thread of their own
        self._began: float | None = None

    def begin(self) -> None:
        """Note that this process begins to train."""
        if self._began is None:
            self._began = self._clock.monotonic()
            self.note(since=self._clock.now())

    def note(self, **found: Any) -> None:
        """Note values of the row."""
        with self._lock:
            self.row = replace(self.row, **found)

    @property
    def mtbf_seconds(self) -> float:
        """The mean time between two failures, as the run has seen them."""
        trained = 0.0 if self._began is None else self._clock.monotonic() - self._began
        return observe_mtbf(self.row.trained_seconds + trained, self.row.failures)


class RecoverySpeed:
    """Estimates of how fast this run is recovered.

    Attributes:
        replay_seconds_per_step: seconds to redo one step; 0.0 if unknown.
        load_seconds: seconds to load a checkpoint; 0.0 if unknown.
        is_replay_measured, is_load_measured: False if that is an estimate.
    """

    def __init__(self, known: MeasuredRow) -> None:
        self.replay_seconds_per_step, self.load_seconds = known.redo_seconds, known.load_seconds
        self.is_replay_measured, self.is_load_measured = known.is_redo_measured, known.load_seconds > 0.0

    def observe_step(self, seconds: float) -> None:
        """Record the duration of an optimizer step. It is the estimate for redoing a step until a recovery measures that."""
        if not self.is_replay_measured:
            known = self.replay_seconds_per_step
            self.replay_seconds_per_step = seconds if known == 0.0 else 0.9 * known + 0.1 * seconds

    def observe_replay(self, seconds_per_step: float) -> None:
        """Record how long redoing a step took in a recovery."""
        self.replay_seconds_per_step, self.is_replay_measured = seconds_per_step, True

    def observe_load(self, seconds: float) -> None:
        """Record how long loading a checkpoint took in a recovery."""
        self.load_seconds, self.is_load_measured = seconds, True
