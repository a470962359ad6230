"""Lost work: what would be lost now if the process, the machine or the site died (pure, from the watermarks).

    the process   no finished step: committed steps are in the kernel's memory or on disk. Of those without tensors the log has
                  where they led, and training computes them again
    the machine   steps after `synced`. A published checkpoint is on disk, too, whatever `durability` is. A run in memory
                  (tmpfs) is lost as a whole, except for what is in a store
    the site      steps after `persisted`; after `archived` if the store calls nothing durable; everything if there is no store

Seconds are training time: how long the steps that would be lost took, without the time in which training waited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..base.quantities import count, format_seconds
from ..catalog import Incident, StoreRow, Watermarks
from .value_decay import EvaluationRow

Scope = Literal["process", "machine", "site"]
CommitHistory = Sequence[tuple[float, int]]  # seconds since 1970, and the newest committed step at that time; oldest first


@dataclass(frozen=True, slots=True)
class LostWork:
    """Cost of one kind of accident.

    Attributes:
        safe_step: the newest step that would remain.
        steps: the number of finished steps that would be lost.
        seconds: the training time that those took; None if it is unknown.
        is_at_least: True if more than `steps` may be lost: logging is suspended, and finished steps are not counted.
        nothing_left: why everything would be lost; "" if something would remain.
        recomputed: of the steps that would remain, the number of those that training would have to compute again.
    """

    scope: Scope
    safe_step: int
    steps: int
    seconds: float | None = None
    is_at_least: bool = False
    nothing_left: str = ""
    recomputed: int = 0

    def describe(self) -> str:
        """Return what would be lost, in words: "3 steps (about 0.4 s)"."""
        if self.nothing_left:
            return f"everything: {self.nothing_left}"
        them = "it" if self.recomputed == 1 else "them"
        again = f"{count(self.recomputed, 'step')} until training has computed {them} again" if self.recomputed else ""
        if self.steps:
            time = "" if self.seconds is None else f" (about {format_seconds(self.seconds)})"
            lost = f"{'at least ' if self.is_at_least else ''}{count(self.steps, 'step')}{time}"
        else:
            lost = f"all steps after {self.safe_step:,}" if self.is_at_least else ""
        return ", and ".join(part for part in (lost, again) if part) or "no finished step"


def estimate_lost_work(
    marks: Watermarks,
    *,
    checkpoint_step: int = 0,
    redo_step: int | None = None,
    history: CommitHistory = (),
    incidents: Sequence[Incident] = (),
    store: StoreRow | None = None,
    in_memory: bool = False,
) -> tuple[LostWork, LostWork, LostWork]:
    """Return what the death of the process, of the machine and of the site would cost.

    `checkpoint_step` is the step of the newest checkpoint on the newest lineage. Redo leads to `redo_step`, behind which the
    log has no tensors (None: to the newest step). Logging was suspended during the incidents; during an open one, steps finish
    that are in no log. `store` is None if the run is not shipped. `in_memory` is True if the run lies on a tmpfs.
    """
    committed, is_suspended = marks.committed, any(incident.to_step is None for incident in incidents)
    on_disk = min(max(marks.synced, checkpoint_step), committed)
    stored = min(marks.persisted or marks.archived, committed)

    def estimate(scope: Scope, safe: int, nothing_left: str = "") -> LostWork:
        again = 0 if redo_step is None else max(0, safe - redo_step)
        seconds = estimate_seconds_since(history, safe)
        return LostWork(scope, safe, committed - safe, seconds, is_suspended, nothing_left, again)

    gone = "there is no store" if not has_store(marks, store) else "" if stored else "the store has no step yet"
    machine = estimate("machine", on_disk)
    if in_memory:
        machine = estimate("machine", stored, "" if stored else "the run lies in memory (tmpfs)")
    return estimate("process", committed), machine, estimate("site", stored, gone)


def has_store(marks: Watermarks | EvaluationRow, store: StoreRow | None = None) -> bool:
    """Return True if the run is shipped to a store."""
    return store is not None or bool(marks.archived or marks.persisted)


def estimate_seconds_since(history: CommitHistory, step: int) -> float | None:
    """Return how long training took from a step to the newest one; None if the history does not reach back that far.

    Steps between two entries of the history are assumed to be evenly spaced. After a rewind, only later entries count.
    """
    start = max((i for i in range(1, len(history)) if history[i][1] < history[i - 1][1]), default=0)
    rise = history[start:]
    if not rise or step < rise[0][1]:
        return None
    return _estimate_commit_time(rise, rise[-1][1]) - _estimate_commit_time(rise, step)


def _estimate_commit_time(rise: CommitHistory, step: int) -> float:
    """Return the time at which a step was committed."""
    at = next((i for i, (_, committed) in enumerate(rise) if committed >= step), len(rise) - 1)
    if at == 0:
        return rise[0][0]
    (since, before), (then, after) = rise[at - 1], rise[at]
    return then - (then - since) * (after - min(step, after)) / (after - before)
