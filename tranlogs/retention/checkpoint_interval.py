"""Policies on when a checkpoint is due (pure). Clocks and measurements come in as facts."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Protocol

from ..base.config import MIB
from ..base.errors import UsageError
from ..base.quantities import BYTES, SECONDS

MTBF_SECONDS = 3600.0  # the mean time between two failures, of a run that has seen neither failures nor much training
_LOG_BYTES_MIN = 4 * MIB  # A checkpoint of a small model costs as much as some hundred of its steps.
_FREE_DISK_SHARE = 16  # The log after the oldest kept checkpoint is some three intervals long.
_BUDGET_SHARE = 4  # of a budget, within which two intervals and two checkpoints fit
_WRITING_SHARE = 0.5  # of the time that another thread writes a checkpoint, the training loop loses at most
_COST_SECONDS_MIN = 0.001  # also of a checkpoint that was not measured yet: the next one is some seconds away


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """Facts on which a policy decides.

    Attributes:
        steps: training steps since the last checkpoint was taken. Steps that several optimizers take in one unit count once.
        replay_seconds_per_step: the time to redo one training step, or to compute it again; 0.0 if it is not known.
        state_bytes: the size of a checkpoint; 0 if it is not known yet.
        free_bytes: free space of the disk when the last checkpoint was taken.
        budget_bytes: what a monitor allows for the journal.
        stall_seconds: the time that training stood still for the last checkpoint.
        writing_seconds: the time that another thread wrote it.
        is_recomputed: True if the log has no tensors of the steps since then: training would have to compute them again.
        mtbf_seconds: the mean time between two failures, as the run has seen them.
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
    mtbf_seconds: float = MTBF_SECONDS
    budget_bytes: int = 1 << 62


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
    """A checkpoint whenever the log since the last one has `nbytes` bytes; while no tensors are logged, as "auto"."""

    nbytes: int

    def is_due(self, facts: CheckpointFacts) -> bool:
        if facts.is_recomputed:
            return Automatic().is_due(facts)
        return facts.steps > 0 and facts.log_bytes >= self.nbytes


@dataclass(frozen=True, slots=True)
class RecoveryTime:
    """Checkpoints so often that loading one, and replaying or computing what follows it, take at most `seconds`."""

    seconds: float

    def is_due(self, facts: CheckpointFacts) -> bool:
        estimate = facts.load_seconds + (facts.steps + 1) * facts.replay_seconds_per_step
        return facts.steps > 0 and estimate >= self.seconds


@dataclass(frozen=True, slots=True)
class Automatic:
    """A checkpoint as soon as it saves more than it costs: the default of `checkpoint_every`.

    A failure costs the replay of half an interval, on average. The waste is least if the interval is the root of twice a
    checkpoint's cost times the mean time between two failures (Young 1974, Daly 2006), divided by the time that replay takes as
    a share of the time that training took: 1 if training computes the steps again. The log must also fit: a checkpoint is due
    when the log has a sixteenth of the free disk or a fourth of a budget (at least the size of a checkpoint, and 4 MiB).

    Attributes:
        mtbf_seconds: the mean time between two failures; None for what the run has seen.
    """

    mtbf_seconds: float | None = None

    def is_due(self, facts: CheckpointFacts) -> bool:
        if facts.steps == 0 or facts.log_bytes >= log_bytes_max(facts.state_bytes, facts.free_bytes, facts.budget_bytes):
            return facts.steps > 0
        if facts.seconds <= 0.0:
            return False
        share = facts.steps * facts.replay_seconds_per_step / facts.seconds
        cost = checkpoint_cost(facts.stall_seconds, facts.writing_seconds)
        return facts.seconds >= best_interval(cost, self.mtbf_seconds or facts.mtbf_seconds, share)


def checkpoint_cost(stall_seconds: float, writing_seconds: float) -> float:
    """Return how many seconds of training a checkpoint costs."""
    return stall_seconds + _WRITING_SHARE * writing_seconds


def best_interval(cost_seconds: float, mtbf_seconds: float, replay_share: float) -> float:
    """Return the seconds between two checkpoints with which checkpoints and failures waste the least.

    Args:
        cost_seconds: of a checkpoint; 0.0 if it is not known.
        replay_share: the time to redo or compute again what an interval has trained, as a share of the interval; 0.0 if it is
            not known, which counts as 1.
    """
    return math.sqrt(2 * max(cost_seconds, _COST_SECONDS_MIN) * mtbf_seconds / (replay_share or 1.0))


def log_bytes_max(state_bytes: int, free_bytes: int, budget_bytes: int = 1 << 62) -> int:
    """Return the number of bytes of log after which a checkpoint is due whatever it costs."""
    return max(min(free_bytes // _FREE_DISK_SHARE, budget_bytes // _BUDGET_SHARE), state_bytes, _LOG_BYTES_MIN)


def observe_mtbf(trained_seconds: float, failures: int) -> float:
    """Return the mean time between two failures of a run: one in an hour, and what it has seen since."""
    return (MTBF_SECONDS + trained_seconds) / (1 + failures)


def as_policy(every: Any) -> CheckpointPolicy:
    """Return the policy for what users write: "auto", 500 (steps), "10min", "256MiB", "rto=30s", "mtbf=6h", or an object.

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
        found = re.fullmatch(r"\s*(?:(rto|mtbf)\s*=)?\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*", every)
        if found:
            target, number, unit = found[1], float(found[2]), found[3].lower()
            if unit in SECONDS and number > 0:
                seconds = number * SECONDS[unit]
                if target == "mtbf":
                    return Automatic(seconds)
                return RecoveryTime(seconds) if target else EverySeconds(seconds)
            if unit in BYTES and not target and number > 0:
                return EveryBytes(int(number * BYTES[unit]))
            if unit in ("step", "steps") and not target and number >= 1:
                return EverySteps(int(number))
    raise UsageError(
        'checkpoint_every must be "auto", steps (500), a time ("10min"), a size of log ("256MiB"), a recovery time '
        f'("rto=30s"), the mean time between two failures ("mtbf=6h") or an object with is_due(facts), got {every!r}'
    )
