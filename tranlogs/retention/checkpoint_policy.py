"""When a checkpoint is due, from facts about the run. Clocks and measurements come in as facts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol

from ..base.errors import UsageError
from ..base.quantities import BYTES, SECONDS


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """What a policy decides on, all since the last checkpoint was taken."""

    steps: int
    seconds: float
    log_bytes: int
    replay_seconds_per_step: float  # measured: what redoing one step costs
    load_seconds: float  # measured: what reading a checkpoint costs


class CheckpointPolicy(Protocol):
    """Decides when a checkpoint is due. Any object with this method will do."""

    def is_due(self, facts: CheckpointFacts) -> bool: ...


@dataclass(frozen=True, slots=True)
class EverySteps:
    """Every so many optimizer steps."""

    steps: int

    def is_due(self, facts: CheckpointFacts) -> bool:
        return facts.steps >= self.steps


@dataclass(frozen=True, slots=True)
class EverySeconds:
    """Every so many seconds."""

    seconds: float

    def is_due(self, facts: CheckpointFacts) -> bool:
        return facts.steps > 0 and facts.seconds >= self.seconds


@dataclass(frozen=True, slots=True)
class EveryBytes:
    """Whenever the log since the last checkpoint has so many bytes."""

    nbytes: int

    def is_due(self, facts: CheckpointFacts) -> bool:
        return facts.steps > 0 and facts.log_bytes >= self.nbytes


@dataclass(frozen=True, slots=True)
class RecoveryTime:
    """So often that loading and replaying stay within `seconds`."""

    seconds: float

    def is_due(self, facts: CheckpointFacts) -> bool:
        estimate = facts.load_seconds + (facts.steps + 1) * facts.replay_seconds_per_step
        return facts.steps > 0 and estimate >= self.seconds


@dataclass(frozen=True, slots=True)
class Never:
    """None but the first, and those that are asked for: a monitor makes them from the log (`tranlogs monitor --compact`)."""

    def is_due(self, facts: CheckpointFacts) -> bool:
        return False


def as_policy(every: Any) -> CheckpointPolicy:
    """A policy from what users write: 500 (steps), "10min", "256MiB", "rto=30s", "never", or a policy object.

    Raises:
        UsageError: it is none of these.
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
        f'checkpoint_every={every!r}: give steps (500), a time ("10min"), a size of log ("256MiB"), '
        'a recovery time ("rto=30s"), "never" or an object with is_due(facts)'
    )
