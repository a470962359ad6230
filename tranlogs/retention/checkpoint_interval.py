"""Policies on when a checkpoint is due (pure). Clocks and measurements come in as facts."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Protocol

from ..base.config import MIB
from ..base.errors import UsageError
from ..base.quantities import BYTES, SECONDS

_LOG_OVER_STATE = 16  # Checkpoints then add a sixteenth to what the log writes.
_LOG_BYTES_MIN = 4 * MIB  # A checkpoint of a small model costs as much as some hundred of its steps.
_FREE_DISK_SHARE = 16  # The log after the oldest kept checkpoint is some three intervals long.
_REPLAY_SECONDS_MAX = 10.0
_MTBF_SECONDS = 3600.0  # assumed between two failures
_WRITING_SHARE = 0.5  # of the time that another thread writes a checkpoint, the training loop loses at most


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """Facts on which a policy decides.

    Attributes:
        steps: training steps since the last checkpoint was taken. Steps that several optimizers take in one unit count once.
        seconds: time since then.
        log_bytes: bytes of log since then.
        replay_seconds_per_step: the measured time to redo one training step.
        load_seconds: the measured time to load a checkpoint.
        state_bytes: the size of a checkpoint; 0 if it is not known yet.
        free_bytes: free space of the disk when the last checkpoint was taken.
        stall_seconds: the time that training stood still for the last checkpoint.
        writing_seconds: the time that another thread wrote it.
        is_recomputed: True if the log has no tensors of the steps since then: training would have to compute them again.
    """

    steps: int
    seconds: float
    log_bytes: int
    replay_seconds_per_step: float
    load_seconds: float
    state_bytes: int = 0
    free_bytes: int = 1 << 62
    stall_seconds: float = 0.0
    writing_seconds: float = 0.0
    is_recomputed: bool = False


class CheckpointPolicy(Protocol):
    """Policy that decides when a checkpoint is due. Any object with this method will do."""

    def is_due(self, facts: CheckpointFacts) -> bool: ...


@dataclass(frozen=True, slots=True)
class EverySteps:
    """A checkpoint every `steps` training steps. Steps that several optimizers take in one unit count once."""

    steps: int

    def is_due(self, facts: CheckpointFacts) -> bool:
        return facts.steps >= self.steps


@dataclass(frozen=True, slots=True)
class EverySeconds:
    """A checkpoint every `seconds` seconds."""

    seconds: float

    def is_due(self, facts: CheckpointFacts) -> bool:
        return facts.steps > 0 and facts.seconds >= self.seconds


@dataclass(frozen=True, slots=True)
class EveryBytes:
    """A checkpoint whenever the log since the last one has `nbytes` bytes."""

    nbytes: int

    def is_due(self, facts: CheckpointFacts) -> bool:
        return facts.steps > 0 and facts.log_bytes >= self.nbytes


@dataclass(frozen=True, slots=True)
class RecoveryTime:
    """Checkpoints so often that loading one and replaying the log after it take at most `seconds`."""

    seconds: float

    def is_due(self, facts: CheckpointFacts) -> bool:
        estimate = facts.load_seconds + (facts.steps + 1) * facts.replay_seconds_per_step
        return facts.steps > 0 and estimate >= self.seconds


@dataclass(frozen=True, slots=True)
class Automatic:
    """A checkpoint as often as disk space and recovery time need it: the default of `checkpoint_every`.

    A checkpoint is due when the log since the last one has 16 times the size of a checkpoint (at least 4 MiB), or a sixteenth
    of the free disk (at least the size of a checkpoint), or when its replay would take 10 seconds. Where training would have to
    compute the steps again, it is due when the time since the last one is worth what a checkpoint costs, at a failure an hour:
    after the square root of twice the product of both (Young 1974, Daly 2006).
    """

    def is_due(self, facts: CheckpointFacts) -> bool:
        if facts.steps == 0:
            return False
        if facts.is_recomputed:
            return facts.seconds >= self.seconds_to_recompute(facts.stall_seconds, facts.writing_seconds)
        is_long = bool(facts.state_bytes) and facts.log_bytes >= self.log_bytes_max(facts.state_bytes, facts.free_bytes)
        return is_long or (facts.steps + 1) * facts.replay_seconds_per_step >= _REPLAY_SECONDS_MAX

    def seconds_to_recompute(self, stall_seconds: float, writing_seconds: float) -> float:
        """Return how many seconds of computing lie between two checkpoints that cost so much."""
        return math.sqrt(2 * (stall_seconds + _WRITING_SHARE * writing_seconds) * _MTBF_SECONDS)

    def log_bytes_max(self, state_bytes: int, free_bytes: int) -> int:
        """Return the number of bytes of log after which a checkpoint is due."""
        share_of_disk = max(free_bytes // _FREE_DISK_SHARE, state_bytes)
        return max(min(_LOG_OVER_STATE * state_bytes, share_of_disk), _LOG_BYTES_MIN)


def as_policy(every: Any) -> CheckpointPolicy:
    """Return the policy for what users write: "auto", 500 (steps), "10min", "256MiB", "rto=30s", or a policy object.

    Raises:
        UsageError: `every` is none of these.
    """
    if isinstance(every, int) and not isinstance(every, bool) and every > 0:
        return EverySteps(every)
    if hasattr(every, "is_due"):
        return every  # type: ignore[no-any-return]
    if every == "auto":
        return Automatic()
    if isinstance(every, str):
        found = re.fullmatch(r"\s*(rto\s*=)?\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*", every)
        if found:
            target, number, unit = bool(found[1]), float(found[2]), found[3].lower()
            if unit in SECONDS and number > 0:
                seconds = number * SECONDS[unit]
                return RecoveryTime(seconds) if target else EverySeconds(seconds)
            if unit in BYTES and not target and number > 0:
                return EveryBytes(int(number * BYTES[unit]))
            if unit in ("step", "steps") and not target and number >= 1:
                return EverySteps(int(number))
    raise UsageError(
        'checkpoint_every must be "auto", steps (500), a time ("10min"), a size of log ("256MiB"), a recovery time '
        f'("rto=30s") or an object with is_due(facts), got {every!r}'
    )
