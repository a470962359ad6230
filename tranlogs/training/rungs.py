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

Processes that train together change at the same boundary, about every tenth one: rank 0 measures, and all follow it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Literal, cast

from ..base.errors import UsageError
from .rehearsed_process import current

UNITS, _SKIPPED = 24, 4  # of a phase in which units are timed, and how many of its first do not count
_UNITS_MIN, _SECONDS = 8, 20.0  # Long units vary less, and those without tensors should not become many minutes.
_GRADIENTS_SECONDS = 300.0  # between two trials, while gradients are logged
_INPUTS_SECONDS, _INPUTS_SECONDS_MAX = 60.0, 600.0  # the same while none are
_RISE = 0.8  # of what is allowed, for a change to gradients

Phase = Literal["trial", "plain", "awaiting", "gradients", "inputs"]
_DECIDED = ("awaiting", "inputs")  # phases with which the log changes for a while


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
        self._trial: list[float] = []
        self._units: list[float] = []
        self._enter("trial")
        self._last = 0.0  # when the last unit ended
        self._decided_at, self._wait = 0.0, _INPUTS_SECONDS

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.logs_tensors, self.is_timing = phase in ("trial", "gradients"), phase in ("trial", "plain")
        self.wants_checkpoint = phase == "awaiting"
        if phase == "trial":
            self._units = []
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
        phase = self._time_unit()
        if phase is not None:
            self._enter(phase)
        return phase in _DECIDED

    def _time_unit(self) -> Phase | None:
        """Note the time of a unit; return the phase that follows, or None."""
        now, last = time.perf_counter(), self._last
        self._last = now
        if not self.is_timing:
            return None
        self._units.append(now - last)
        if len(self._units) < UNITS and (len(self._units) < _UNITS_MIN or sum(self._units[1:]) < _SECONDS):
            return None
        units, self._units = self._units[_SKIPPED:], []
        if self.phase == "trial":
            self._trial = units
            return "plain"
        return self._decide(statistics.median(self._trial) / max(statistics.median(units), 1e-9) - 1.0)

    def _decide(self, cost: float) -> Phase:
        assert self.overhead is not None
        was_cheap = self.cost is not None and self.cost <= self.overhead
        allowed = self.overhead if was_cheap or self.cost is None else _RISE * self.overhead
        self.cost, self._decided_at = cost, time.monotonic()
        is_as_before = cost > allowed and not was_cheap
        self._wait = min(2 * self._wait, _INPUTS_SECONDS_MAX) if is_as_before else _INPUTS_SECONDS
        return "awaiting" if cost <= allowed else "inputs"

    def note_checkpoint(self) -> bool:
        """Note that a checkpoint was taken at this boundary; return True if tensors are logged from here on that were not."""
        phase, had_tensors = self._find_next(), self.logs_tensors
        if phase is not None:
            self._enter(phase)
        return self.logs_tensors and not had_tensors

    def _find_next(self) -> Phase | None:
        """Return the phase that follows a checkpoint which is taken now, or None."""
        if self.wants_checkpoint:
            return "gradients"
        waits = {"gradients": _GRADIENTS_SECONDS, "inputs": self._wait}
        is_over = self.phase in waits and time.monotonic() - self._decided_at >= waits[self.phase]
        return "trial" if is_over and not self.is_settled else None


class FollowedRung(MeasuredRung):
    """The same in one of several processes. It changes where all of them ask each other, as the leader has measured.

    Args:
        overhead: what the log of gradients may cost at most, as a share of a unit without it.
        is_leader: True in the process that measures.
    """

    def __init__(self, overhead: float, *, is_leader: bool) -> None:
        super().__init__(overhead)
        self._is_leader = is_leader
        self._planned: Phase | None = None

    def _enter(self, phase: Phase) -> None:
        self._planned = None
        super()._enter(phase)

    def note_unit(self) -> bool:
        """Note that a unit ends."""
        if self._is_leader and self._planned is None:
            self._planned = self._time_unit()
        return False

    def note_checkpoint(self) -> bool:
        """Note that a checkpoint was taken: all processes know that it is."""
        return False

    def propose(self) -> list[Any]:
        """Return what follows now, and what follows if all take a checkpoint, as plain values for the other processes."""
        return [self._planned, self._find_next(), self.cost, self.phase, self.is_settled]

    def follow(self, proposal: list[Any], *, is_checkpoint: bool) -> bool:
        """Enter the phase that the leader has proposed; return True if what is logged was decided anew.

        Args:
            is_checkpoint: True if all processes take a checkpoint now.
        """
        planned, next_phase, self.cost, _, _ = proposal
        phase = cast("Phase | None", (next_phase if is_checkpoint else None) or planned)
        if phase is None:
            return False
        if phase in _DECIDED:
            self._decided_at = time.monotonic()
        self._enter(phase)
        return phase in _DECIDED

    def begin_as(self, proposal: list[Any]) -> None:
        """Begin in the phase in which the leader begins."""
        *_, phase, self.is_settled = proposal
        if phase != self.phase:
            self._enter(phase)


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
