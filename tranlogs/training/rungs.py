"""`log="auto"`: gradients are logged where they cost at most what the user allows, else no tensors.

phase        tensors   until
trial        logged    24 units were timed (8, once they take 20 seconds): then "plain"
plain        none      as many were timed. If the logged ones took longer by more than is allowed: "inputs". Else "awaiting"
awaiting     none      the checkpoint that it asks for is taken: "gradients"
gradients    logged    a checkpoint is taken five minutes or more later: "trial"
inputs       none      a checkpoint is taken a minute or more later (each time twice as long, at most ten): "trial"

Tensors are logged from a checkpoint on, or not before the next one: recovery redoes the records behind a checkpoint up to the
first step without tensors, and the loop computes the rest. The first units of both phases do not count, and the medians are
compared, so that a validation or a busy moment decides nothing.

A loop that does not repeat itself, and steps outside of loops, are logged with tensors whatever they cost: computing them again
gives another training. Arithmetic that does not repeat itself gives other bits of the same training, so there the bound holds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Literal

from ..base.errors import UsageError
from .rehearsed_process import current

UNITS, _SKIPPED = 24, 4  # of a phase in which units are timed, and how many of its first do not count
_UNITS_MIN, _SECONDS = 8, 20.0  # Long units vary less, and those without tensors should not become many minutes.
_GRADIENTS_SECONDS = 300.0  # between two trials, while gradients are logged
_INPUTS_SECONDS, _INPUTS_SECONDS_MAX = 60.0, 600.0  # the same while none are
_RISE = 0.8  # of what is allowed, for a change to gradients

Phase = Literal["trial", "plain", "awaiting", "gradients", "inputs"]


class Rung:
    """What a run logs that always logs the same.

    Args:
        logs_tensors: True if the steps are logged with their tensors.

    Attributes:
        logs_tensors: True if the steps of the unit that begins are logged with their tensors.
        wants_checkpoint: True if a checkpoint is needed, from which on tensors are logged.
        is_timing: True while units are timed.
        is_measured: True where measurements decide.
        is_settled: True if tensors are logged whatever they cost.
        is_repeatable: False if the arithmetic of a step gives other bits each time (atomic additions of a GPU).
        phase: see the table of the module.
        overhead: what the log of gradients may cost at most, as a share of a unit without it; None for no bound.
        cost: what it cost in the last trial; None before the first.
        on_change: called when the phase changes.
    """

    is_measured = is_timing = wants_checkpoint = is_settled = False
    is_repeatable = True
    phase: Phase
    overhead: float | None = None
    cost: float | None = None
    on_change: Callable[[], None] | None = None

    def __init__(self, logs_tensors: bool) -> None:
        self.logs_tensors = logs_tensors
        self.phase = "gradients" if logs_tensors else "inputs"

    def settle(self) -> None:
        """It is settled."""

    def note_difference(self) -> None:
        """It stays as it is."""

    def compute_again(self) -> None:
        """It stays as it is."""

    def note_unit(self) -> bool:
        """It stays as it is."""
        return False

    def note_checkpoint(self) -> bool:
        """It stays as it is."""
        return False

    def begin_fit(self) -> None:
        """It stays as it is."""


class MeasuredRung(Rung):
    """Decides whether tensors are logged.

    Args:
        overhead: what the log of gradients may cost at most, as a share of a unit without it.
    """

    is_measured = True

    def __init__(self, overhead: float) -> None:
        self.overhead = overhead
        self._enter("trial")
        self._trial: list[float] = []
        self._units: list[float] = []
        self._last = 0.0  # when the last unit ended
        self._decided_at, self._wait = 0.0, _INPUTS_SECONDS

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.logs_tensors, self.is_timing = phase in ("trial", "gradients"), phase in ("trial", "plain")
        self.wants_checkpoint = phase == "awaiting"
        if self.on_change is not None:
            self.on_change()

    def begin_fit(self) -> None:
        """Note that another loop begins, with a checkpoint: what is being measured begins anew."""
        self._units = []
        if self.is_timing:
            self._enter("trial")
        elif self.wants_checkpoint:
            self._enter("gradients")

    def settle(self) -> None:
        """Log gradients whatever they cost."""
        self.is_settled = True
        self._enter("gradients" if self.logs_tensors else "awaiting")

    def note_difference(self) -> None:
        """Note that a unit which was computed again differed from its record, and not by rounding only."""
        if self.is_repeatable:
            self.settle()

    def compute_again(self) -> None:
        """Log no tensors before the next checkpoint: steps are computed again of which the log has none."""
        self._enter("awaiting" if self.is_settled else "inputs")
        self._decided_at = time.monotonic()

    def note_unit(self) -> bool:
        """Note that a unit ends; return True if what is logged was decided anew."""
        now, last = time.perf_counter(), self._last
        self._last = now
        if not self.is_timing:
            return False
        self._units.append(now - last)
        if len(self._units) < UNITS and (len(self._units) < _UNITS_MIN or sum(self._units[1:]) < _SECONDS):
            return False
        units, self._units = self._units[_SKIPPED:], []
        if self.phase == "trial":
            self._enter("plain")
            self._trial = units
            return False
        self._decide(statistics.median(self._trial) / max(statistics.median(units), 1e-9) - 1.0)
        return True

    def _decide(self, cost: float) -> None:
        assert self.overhead is not None
        was_cheap = self.cost is not None and self.cost <= self.overhead
        allowed = self.overhead if was_cheap or self.cost is None else _RISE * self.overhead
        self.cost, self._decided_at = cost, time.monotonic()
        self._enter("awaiting" if cost <= allowed else "inputs")
        is_as_before = cost > allowed and not was_cheap
        self._wait = min(2 * self._wait, _INPUTS_SECONDS_MAX) if is_as_before else _INPUTS_SECONDS

    def note_checkpoint(self) -> bool:
        """Note that a checkpoint was taken at this boundary; return True if tensors are logged from here on that were not."""
        since = time.monotonic() - self._decided_at
        if self.wants_checkpoint:
            self._enter("gradients")
            return True
        if self.is_settled:
            return False
        if self.phase == "gradients" and since >= _GRADIENTS_SECONDS:
            self._enter("trial")
            self._units = []
        elif self.phase == "inputs" and since >= self._wait:
            self._enter("trial")
            self._units = []
            return True
        return False


def choose_rung(log: str, overhead: float | None) -> Rung:
    """Return what decides whether tensors are logged. A rehearsal, which compares logs, has them all.

    Args:
        log: "auto", or what is always logged.
        overhead: what the log may cost with "auto"; None for no bound.
    """
    if log != "auto" or overhead is None or current() is not None:
        return Rung(logs_tensors=log != "inputs")
    return MeasuredRung(overhead)


def parse_overhead(overhead: object) -> float | None:
    """Return the share that a user has written: "5%", or 0.05; None for no bound.

    Raises:
        UsageError: it is neither, or not above 0 and below 1.
    """
    share = -1.0
    if overhead is None:
        return None
    try:
        if isinstance(overhead, str) and overhead.strip().endswith("%"):
            share = float(overhead.strip()[:-1]) / 100
        elif isinstance(overhead, (int, float)) and not isinstance(overhead, bool):
            share = float(overhead)
    except ValueError:
        pass
    if not 0.0 < share < 1.0:
        raise UsageError(
            'overhead must be a share of a step above 0 and below 100 %, as "5%" or 0.05, or None for no bound, '
            f"got {overhead!r}"
        )
    return share
