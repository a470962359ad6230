"""What recovery tells."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """Where recovery landed and how.

    Attributes:
        step: optimizer steps applied.
        batch: batches consumed over the whole run.
        epoch: epoch in which the loop goes on, from 0.
        timeline: the timeline that the next record belongs to.
        checkpoint_step: where replay started; None for a fresh run.
        replayed: steps redone from the log.
        seconds: time it took, from looking at the files to the last redone step.
        seconds_replay: how much of that went into redoing steps.
        exact: True if every redone step was compared and equal, False if one (or the order of the data) differed, None if
            it could not be told.
        first_divergent_step: the first step that differed.
        notes: what else should be known, one sentence each.
    """

    step: int = 0
    batch: int = 0
    epoch: int = 0
    timeline: int = 1
    checkpoint_step: int | None = None
    replayed: int = 0
    seconds: float = 0.0
    seconds_replay: float = 0.0
    exact: bool | None = True
    first_divergent_step: int | None = None
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        told = "".join(f"\n  {note}" for note in self.notes)
        if self.checkpoint_step is None:
            return f"fresh run: step 0{told}"
        since = "" if self.first_divergent_step is None else f" from step {self.first_divergent_step}"
        verdict = {True: "bit-exact", False: f"NOT exact{since}", None: "not verified"}
        return (
            f"recovered to step {self.step} (checkpoint {self.checkpoint_step} + {self.replayed} replayed, "
            f"{self.seconds:.2f} s, {verdict[self.exact]}){told}"
        )
