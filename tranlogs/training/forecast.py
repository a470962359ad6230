"""What a run is going to write, in one sentence for the start of the run."""

from __future__ import annotations

from pathlib import Path

from ..base.atomic_files import free_bytes
from ..base.config import KIB
from ..base.quantities import count, format_bytes, format_seconds
from ..retention import Automatic, CheckpointPolicy, EveryBytes, EverySeconds, EverySteps, Never, RecoveryTime

_DESCRIPTION_BYTES = 2 * KIB  # of a step and its boundary: random states, hyper-parameters, position in the data


def forecast_writes(
    policy: CheckpointPolicy, run: Path, *, step_bytes: int, state_bytes: int, at_epoch_ends: bool = False
) -> str:
    """Return how much a fresh run writes a step, and when its next checkpoint comes.

    Args:
        policy: when a checkpoint is taken.
        run: folder of the run, which exists.
        step_bytes: bytes of the tensors that a training step logs.
        state_bytes: bytes of a checkpoint.
        at_epoch_ends: whether a checkpoint is also taken at the end of each epoch.
    """
    assert step_bytes > 0
    step_bytes += _DESCRIPTION_BYTES
    interval = _describe_interval(policy, run, step_bytes, state_bytes)
    first = "at the end of the epoch, or " if at_epoch_ends else ""
    return f"about {format_bytes(step_bytes)} of log a step; next checkpoint {first}{interval}"


def _describe_interval(policy: CheckpointPolicy, run: Path, step_bytes: int, state_bytes: int) -> str:
    if isinstance(policy, Automatic):
        policy = EveryBytes(policy.log_bytes_max(state_bytes, free_bytes(run)))
    if isinstance(policy, EveryBytes):
        steps = max(policy.nbytes // step_bytes, 1)
        return f"after about {count(steps, 'step')} ({format_bytes(steps * step_bytes)} of log)"
    if isinstance(policy, EverySteps):
        return f"after {count(policy.steps, 'step')} ({format_bytes(policy.steps * step_bytes)} of log)"
    if isinstance(policy, EverySeconds):
        return f"after {format_seconds(policy.seconds)}"
    if isinstance(policy, RecoveryTime):
        return f"when a recovery would take {format_seconds(policy.seconds)}"
    if isinstance(policy, Never):
        return "never"
    return f"when {type(policy).__name__} says so"
