"""What a run is going to write, in one sentence for the start of the run."""

from __future__ import annotations

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
    Never,
    RecoveryTime,
    RetentionPolicy,
)

_FILES_BESIDE_LOG = 5  # The first and the last file of the log are partly used, one is ready, and two are kept for recycling.
_DATABASE_BYTES = 4 * MIB  # the index of the log, and the catalog
_DESCRIPTION_BYTES = 2 * KIB  # of a step and its boundary: random states, hyper-parameters, position in the data


def forecast_writes(
    policy: CheckpointPolicy,
    run: Path,
    *,
    step_bytes: int,
    state_bytes: int,
    at_epoch_ends: bool = False,
    retention: RetentionPolicy | None = None,
    more_checkpoints: int = 0,
    segment_bytes: int = 0,
) -> str:
    """Return how much a fresh run writes a step, when its next checkpoint comes, and how much disk space it takes.

    Args:
        policy: when a checkpoint is taken.
        run: folder of the run, which exists.
        step_bytes: bytes of the tensors that a training step logs.
        state_bytes: bytes of a checkpoint.
        at_epoch_ends: whether a checkpoint is also taken at the end of each epoch.
        retention: which checkpoints are kept; None if that is not known.
        more_checkpoints: number of checkpoints that are kept besides.
        segment_bytes: size of a log file.
    """
    assert step_bytes > 0
    step_bytes += _DESCRIPTION_BYTES
    steps = _count_steps(policy, run, step_bytes, state_bytes)
    first = "at the end of the epoch, or " if at_epoch_ends else ""
    interval = _describe_interval(policy, steps, step_bytes)
    disk = ""
    if steps and isinstance(retention, KeepLatest):
        files = _FILES_BESIDE_LOG * segment_bytes + _DATABASE_BYTES
        nbytes = retention.count * steps * step_bytes + (retention.count + more_checkpoints + 1) * state_bytes + files
        disk = f"; at most about {format_bytes(nbytes)} on disk"
    return f"about {format_bytes(step_bytes)} of log a step; next checkpoint {first}{interval}{disk}"


def _count_steps(policy: CheckpointPolicy, run: Path, step_bytes: int, state_bytes: int) -> int:
    """Return how many steps lie between two checkpoints; 0 if bytes and steps do not tell."""
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
    if isinstance(policy, Never):
        return "never"
    return f"when {type(policy).__name__} says so"
