"""A forecast of what a run will write, in one sentence for the start of the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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

_FILES_BESIDE_LOG = 5  # The first and the last file of the log are partly used, one is ready, and two are kept for recycling.
_DATABASE_BYTES = 4 * MIB  # the catalog
_DESCRIPTION_BYTES = 2 * KIB  # of a step and its boundary: random states, hyper-parameters, position in the data


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

    A crash leaves a log file more, until the next checkpoint.

    Args:
        policy: when a checkpoint is taken.
        run: folder of the run, which exists.
        writes: what the run writes.
        retention: which checkpoints are kept; None if that is not known.
    """
    assert writes.step_bytes > 0
    step_bytes, state_bytes = writes.step_bytes + _DESCRIPTION_BYTES, writes.state_bytes
    steps = _count_steps(policy, run, step_bytes, state_bytes)
    first = "at the end of the epoch, or " if writes.at_epoch_ends else ""
    interval = _describe_interval(policy, steps, step_bytes)
    disk = ""
    if steps and isinstance(retention, KeepLatest):
        files = _FILES_BESIDE_LOG * writes.segment_bytes + _DATABASE_BYTES
        nbytes = retention.count * steps * step_bytes + (retention.count + writes.more_checkpoints + 1) * state_bytes + files
        disk = f"; at most about {format_bytes(nbytes)} on disk without crashes"
    return f"about {format_bytes(step_bytes)} of log a step; next checkpoint {first}{interval}{disk}"


def _count_steps(policy: CheckpointPolicy, run: Path, step_bytes: int, state_bytes: int) -> int:
    """Return how many steps lie between two checkpoints; 0 if neither bytes nor steps decide."""
    if isinstance(policy, Automatic):
        policy = EveryBytes(policy.log_bytes_max(state_bytes, free_bytes(run)))
    if isinstance(policy, EveryBytes):
        return max(policy.nbytes // step_bytes, 1)
    return policy.steps if isinstance(policy, EverySteps) else 0


def _describe_interval(policy: CheckpointPolicy, steps: int, step_bytes: int) -> str:
    if steps:
        about = "" if isinstance(policy, EverySteps) else "about "
        return f"after {about}{count(steps, 'step')} ({format_bytes(steps * step_bytes)} of log)"
    if isinstance(policy, EverySeconds):
        return f"after {format_seconds(policy.seconds)}"
    if isinstance(policy, RecoveryTime):
        return f"when a recovery would take {format_seconds(policy.seconds)}"
    return f"when {type(policy).__name__} says so"
