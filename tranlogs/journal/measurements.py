"""What a run measures about itself: for the policy of checkpoints, and for `tranlogs advise`, which reads it in the catalog."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from ..base.clock import Clock
from ..catalog import Catalog, MeasuredRow
from ..retention.checkpoint_interval import observe_mtbf
from .owner_lock import Owner


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
