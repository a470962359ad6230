"""What would be lost now if the process, the machine or the site died: a pure decision over watermarks.

    the process   nothing finished: what is committed lies in the kernel's memory, or on disk
    the machine   steps after `synced`; a published checkpoint is on disk, too, whatever `durability` is. A run in memory
                  (tmpfs) goes with it, but for what is in a store
    the site      steps after `persisted`; after `archived` where the store calls nothing durable; all without a store

Seconds are of training, not of waiting: how long the steps that would be gone took.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..base.quantities import count, format_seconds
from ..catalog import EvaluationRow, Incident, StoreRow, Watermarks

Scope = Literal["process", "machine", "site"]
History = Sequence[tuple[float, int]]  # seconds since 1970 and the step that was committed then, oldest first


@dataclass(frozen=True, slots=True)
class Exposure:
    """What one accident would cost.

    Attributes:
        scope: what dies.
        safe_step: the newest step that would be left.
        steps: finished ones that would be gone.
        seconds: of training that those took; None where it is not known.
        is_at_least: whether it is more than `steps`: logging is suspended, and nobody counts.
        nothing_left: why nothing at all would be left; "" if something would.
    """

    scope: Scope
    safe_step: int
    steps: int
    seconds: float | None = None
    is_at_least: bool = False
    nothing_left: str = ""

    def in_words(self) -> str:
        """What would be lost: "3 steps (about 0.4 s)"."""
        if self.nothing_left:
            return f"everything: {self.nothing_left}"
        if not self.steps:
            return f"all steps after {self.safe_step:,}" if self.is_at_least else "no finished step"
        time = "" if self.seconds is None else f" (about {format_seconds(self.seconds)})"
        return f"{'at least ' if self.is_at_least else ''}{count(self.steps, 'step')}{time}"


def exposures(marks: Watermarks, *, checkpoint_step: int = 0, history: History = (), incidents: Sequence[Incident] = (),
              store: StoreRow | None = None, in_memory: bool = False) -> tuple[Exposure, Exposure, Exposure]:  # fmt: skip
    """For the process, the machine and the site (pure).

    Args:
        marks: the watermarks.
        checkpoint_step: of the newest checkpoint on the way to the newest step.
        history: what was committed when.
        incidents: of logging; one that is not over means that steps are finished which are in no log.
        store: that the run is shipped to.
        in_memory: the run lies on a tmpfs.
    """
    committed, is_suspended = marks.committed, any(incident.to_step is None for incident in incidents)
    on_disk = min(max(marks.synced, checkpoint_step), committed)
    stored = min(marks.persisted or marks.archived, committed)

    def exposure(scope: Scope, safe: int, nothing_left: str = "") -> Exposure:
        return Exposure(scope, safe, committed - safe, seconds_between(history, safe), is_suspended, nothing_left)

    gone = "there is no store" if not has_store(marks, store) else "" if stored else "the store has no step yet"
    machine = exposure("machine", on_disk)
    if in_memory:
        machine = exposure("machine", stored, "" if stored else "the run lies in memory (tmpfs)")
    return exposure("process", committed), machine, exposure("site", stored, gone)


def has_store(marks: Watermarks | EvaluationRow, store: StoreRow | None = None) -> bool:
    """Whether the run is archived anywhere."""
    return store is not None or bool(marks.archived or marks.persisted)


def seconds_between(history: History, step: int) -> float | None:
    """How long training took from a step to the newest one; None where the history does not reach back so far.

    Between two looks steps are taken to come evenly. After a rewind only what came since counts.
    """
    start = max((i for i in range(1, len(history)) if history[i][1] < history[i - 1][1]), default=0)
    rise = history[start:]
    if not rise or step < rise[0][1]:
        return None
    return _reached(rise, rise[-1][1]) - _reached(rise, step)


def _reached(rise: History, step: int) -> float:
    """When a step was committed."""
    at = next((i for i, (_, committed) in enumerate(rise) if committed >= step), len(rise) - 1)
    if at == 0:
        return rise[0][0]
    (since, before), (then, after) = rise[at - 1], rise[at]
    return then - (then - since) * (after - min(step, after)) / (after - before)
