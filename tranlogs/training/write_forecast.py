"""A forecast of what a run will write, for the start of the run, and the schedule of scans for foreign writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..base.atomic_files import free_bytes
from ..base.config import KIB, MIB
from ..base.quantities import count, format_bytes, format_seconds
from ..retention import (
    Automatic,
    CheckpointPolicy,
    EveryBytes,
    EverySeconds,
    EverySteps,
    KeepLatest,
    RecoveryTime,
    RetentionPolicy,
)
from ..retention.checkpoint_interval import log_bytes_max

_FILES_BESIDE_LOG = 5  # The first and the last file of the log are partly used, one is ready, and two are kept for recycling.
_DATABASE_BYTES = 4 * MIB  # the catalog
_SMALL_SHARE = 0.01  # of the free disk: less needs no mention
_STEPS_OF_SPACE = 10_000  # Where more of them fit, time decides when a checkpoint is due.
_DESCRIPTION_BYTES = 2 * KIB  # of a step and its boundary: random states, hyper-parameters, position in the data

Place = Literal["before a step", "at a boundary"]
FIRST_UNITS = 32  # of a process, in which every scan is full
_SHARE = 0.005  # of a step, for each of the two places
_FREE_SECONDS = 50e-6
_PART_BYTES = 64 << 10  # read in a scan that is not full


@dataclass(frozen=True, slots=True)
class ExpectedWrites:
    """Facts about a fresh run that decide how much it writes.

    Attributes:
        step_bytes: bytes of the tensors that a training step logs.
        state_bytes: bytes of a checkpoint.
        segment_bytes: size of a log file.
        at_epoch_ends: True if a checkpoint is also taken at the end of each epoch.
        more_checkpoints: number of checkpoints that are kept in addition to those of the retention policy.
    """

    step_bytes: int
    state_bytes: int
    segment_bytes: int = 0
    at_epoch_ends: bool = False
    more_checkpoints: int = 0


def forecast_writes(
    policy: CheckpointPolicy, run: Path, writes: ExpectedWrites, retention: RetentionPolicy | None = None
) -> str:
    """Return how much a fresh run writes a step, when its next checkpoint comes, and how much disk space it takes at most.

    A bound that is small beside the free disk is left out. A crash leaves a log file more, until the next checkpoint.

    Args:
        policy: when a checkpoint is taken.
        run: folder of the run, which exists.
        writes: what the run writes.
        retention: which checkpoints are kept; None if that is not known.
    """
    assert writes.step_bytes > 0
    free = free_bytes(run)
    step_bytes, state_bytes = writes.step_bytes + _DESCRIPTION_BYTES, writes.state_bytes
    steps = _count_steps(policy, free, step_bytes, state_bytes)
    first = "at the end of the epoch, or " if writes.at_epoch_ends else ""
    interval = _describe_interval(policy, steps, step_bytes)
    disk = ""
    if steps and isinstance(retention, KeepLatest):
        files = _FILES_BESIDE_LOG * writes.segment_bytes + _DATABASE_BYTES
        nbytes = retention.count * steps * step_bytes + (retention.count + writes.more_checkpoints + 1) * state_bytes + files
        if nbytes > _SMALL_SHARE * free:
            disk = f"; at most about {format_bytes(nbytes)} on disk without crashes, {format_bytes(free)} are free"
    return f"about {format_bytes(step_bytes)} of log a step; next checkpoint {first}{interval}{disk}"


def forecast_trial(policy: CheckpointPolicy, step_bytes: int, overhead: float, *, at_epoch_ends: bool = False) -> str:
    """Return what a fresh run does first that logs tensors within some overhead, and when its checkpoints come.

    Args:
        policy: when a checkpoint is taken.
        step_bytes: bytes of the tensors that a step would log.
        overhead: what the log may cost at most, as a share of a step.
        at_epoch_ends: True if a checkpoint is also taken at the end of each epoch.
    """
    return (
        f"the first steps measure whether a log of about {format_bytes(step_bytes + _DESCRIPTION_BYTES)} "
        f"costs more than {100 * overhead:.3g} % of a step; checkpoints: {_describe_checkpoints(policy, at_epoch_ends)}"
    )


def forecast_inputs(policy: CheckpointPolicy, *, at_epoch_ends: bool = False) -> str:
    """Return what a crash costs a fresh run that logs no tensors, and when its checkpoints come.

    Args:
        policy: when a checkpoint is taken.
        at_epoch_ends: True if one is also taken at the end of each epoch.
    """
    checkpoints = _describe_checkpoints(policy, at_epoch_ends)
    return (
        f"no tensors are logged: a crash costs computing the steps since the last checkpoint again; checkpoints: {checkpoints}"
    )


def _describe_checkpoints(policy: CheckpointPolicy, at_epoch_ends: bool) -> str:
    if isinstance(policy, Automatic):
        interval = "each when it saves more than it costs"
    elif isinstance(policy, EverySteps):
        interval = f"the next one after {count(policy.steps, 'step')}"
    else:
        interval = f"the next one {_describe_interval(policy, 0, 0)}"
    return f"at the end of each epoch, and {interval}" if at_epoch_ends else interval


def _count_steps(policy: CheckpointPolicy, free: int, step_bytes: int, state_bytes: int) -> int:
    """Return how many steps lie between two checkpoints at most; 0 if neither bytes nor steps decide."""
    if isinstance(policy, Automatic):
        steps = max(log_bytes_max(state_bytes, free) // step_bytes, 1)
        return steps if steps <= _STEPS_OF_SPACE else 0
    if isinstance(policy, EveryBytes):
        return max(policy.nbytes // step_bytes, 1)
    return policy.steps if isinstance(policy, EverySteps) else 0


def _describe_interval(policy: CheckpointPolicy, steps: int, step_bytes: int) -> str:
    if steps:
        after = "after " if isinstance(policy, EverySteps) else "after about "
        if isinstance(policy, Automatic):
            after = "when it saves more than it costs, after at most "
        return f"{after}{count(steps, 'step')} ({format_bytes(steps * step_bytes)} of log)"
    if isinstance(policy, Automatic):
        return "when it saves more than it costs"
    if isinstance(policy, EverySeconds):
        return f"after {format_seconds(policy.seconds)}"
    if isinstance(policy, RecoveryTime):
        return f"when a recovery would take {format_seconds(policy.seconds)}"
    return f"when {type(policy).__name__} says so"


class ScanSchedule:
    """Decides for each scan whether it is full, and what it reads otherwise."""

    def __init__(self) -> None:
        self._units = 0
        self._full_at: dict[Place, int] = {}  # unit of the last full scan
        self._full_before: dict[Place, int] = {}  # unit of the full scan before that
        self._known: set[Place] = set()  # places where a write without a trace was found
        self._next = 0  # the tensor with which the next part starts

    def count_unit(self) -> None:
        """Count a unit that was committed."""
        self._units += 1

    def is_full_scan_due(self, place: Place, look_seconds: float, step_seconds: float) -> bool:
        """Return True if the scan that comes now is a full one.

        Args:
            place: where the training loop is.
            look_seconds: duration of a full scan.
            step_seconds: duration of a step; 0 if unknown.
        """
        units = self._units
        is_full = units < FIRST_UNITS or place in self._known or look_seconds < _FREE_SECONDS
        if not is_full:
            share = look_seconds / step_seconds if step_seconds else 1.0
            is_full = share <= _SHARE or units - self._full_at.get(place, 0) >= share / _SHARE
        if is_full:
            self._full_before[place], self._full_at[place] = self._full_at.get(place, units), units
        return is_full

    def note_write(self, place: Place) -> bool:
        """Record a write that left no trace.

        Returns:
            True if it may have happened several units before the scan that found it.
        """
        at, before = self._full_at.get(place, self._units), self._full_before.get(place, self._units)
        last = before if at == self._units else at  # the last full scan that found nothing
        is_late = place not in self._known and self._units - last > 1
        self._known.add(place)
        return is_late

    def next_part(self, sizes: Sequence[int]) -> list[int]:
        """Return the tensors to read in a scan that is not full, given their sizes in bytes."""
        found, left = [], _PART_BYTES
        for _ in range(min(len(sizes), 64)):
            index = self._next % len(sizes)
            if sizes[index] > _PART_BYTES:
                self._next += 1
                continue
            if sizes[index] > left:
                break
            found.append(index)
            left -= sizes[index]
            self._next += 1
        return found
