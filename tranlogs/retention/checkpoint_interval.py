"""Policies on when a checkpoint is due (pure). Clocks and measurements come in as facts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol

from ..base.errors import UsageError
from ..base.quantities import BYTES, SECONDS


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """Facts on which a policy decides.

    Attributes:
        steps: steps since the last checkpoint was taken.
        seconds: time since then.
        log_bytes: bytes of log since then.
        replay_seconds_per_step: the measured time to redo one step.
        load_seconds: the measured time to load a checkpoint.
    """

    steps: int
    seconds: float
    log_bytes: int
    replay_seconds_per_step: float
    load_seconds: float


class CheckpointPolicy(Protocol):
    """Policy that decides when a checkpoint is due. Any object with this method will do."""

    def is_due(self, facts: CheckpointFacts) -> bool: ...


@dataclass(frozen=True, slots=True)
class EverySteps:
    """A checkpoint every `steps` optimizer steps."""

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
class Never:
    """No checkpoint but the first one and those that are requested: a monitor derives them (`tranlogs monitor --compact`)."""

    def is_due(self, facts: CheckpointFacts) -> bool:
        return False


def as_policy(every: Any) -> CheckpointPolicy:
    """Return the policy for what users write: 500 (steps), "10min", "256MiB", "rto=30s", "never", or a policy object.

    Raises:
        UsageError: `every` is none of these.
    """
    if isinstance(every, int) and not isinstance(every, bool) and every > 0:
        return EverySteps(every)
    if hasattr(every, "is_due"):
        return every  # type: ignore[no-any-return]
    if every == "never":
        return Never()
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
        'checkpoint_every must be steps (500), a time ("10min"), a size of log ("256MiB"), a recovery time ("rto=30s"), '
        f'"never" or an object with is_due(facts), got {every!r}'
    )
