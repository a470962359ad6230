"""Results of a group recovery: of one attempt on one rank, and of the whole recovery for one rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...base.errors import error_text
from ..recover import Recovered
from .decision.agreement import Damage

DAMAGE_KINDS = ("checkpoints", "records", "boundaries", "shards")


@dataclass(slots=True)
class GroupRecovered:
    """The outcome of a group recovery for one rank.

    Attributes:
        recovered: the recovery of this rank; None if the rank starts with its initial state.
        timeline: the timeline on which all ranks continue.
        is_new: True if that timeline is a new one.
        first_timeline: the timeline that started the generation in which all ranks continue.
        starts_generation: True if that generation starts now, so that every rank must begin with a checkpoint.
        is_resized: True if it starts because the number of processes has changed.
        is_journal_lost: True if the rank's own journal was lost, so that the rank must begin with a checkpoint.
        is_resharded: True if parameters are sharded in another way. The earlier generation then counts until every rank has a
            checkpoint.
        timeline_ids: the ids of the timelines that lead to the continued run, as they are recorded (timeline_ids.py).
        seed: text from which a rank without random state of its own derives one, the same at each attempt; "" for any other
            rank.
        copied_rank: this rank, if its own state is in the boundary of the preceding rank at which it resumed; else -1.
        caveats: what could not be restored exactly, one sentence each.
        notes: what else to report, one sentence each.
        obstacle: why no unit is computed again, if that was wanted; "" if one is.
    """

    recovered: Recovered | None
    timeline: int
    is_new: bool
    first_timeline: int
    starts_generation: bool
    is_resized: bool
    is_journal_lost: bool
    is_resharded: bool = False
    timeline_ids: list[list[Any]] = field(default_factory=list)
    seed: str = ""
    copied_rank: int = -1
    caveats: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    obstacle: str = ""


@dataclass(slots=True)
class RankAttempt:
    """The result of one attempt on one rank, which the ranks exchange.

    Attributes:
        damage: what could not be read.
        error: what ended the attempt; None if nothing did.
        digest: of the state that should be the same on all ranks; "" if it is not compared.
        has_later: True if the journal holds a boundary or a checkpoint after the target.
        caveats: what could not be restored exactly, one sentence each.
        notes: what was damaged, one sentence each.
        obstacle: why this rank cannot compute the newest unit again; "" if it can, or is not to.
    """

    damage: Damage = field(default_factory=Damage)
    error: BaseException | None = None
    digest: str = ""
    has_later: bool = False
    caveats: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    obstacle: str = ""

    def pack(self) -> dict[str, Any]:
        """Return the attempt as plain values that can be sent to other ranks."""
        return {
            **{kind: sorted(getattr(self.damage, kind)) for kind in DAMAGE_KINDS},
            "error": error_text(self.error) if self.error else "",
            "digest": self.digest,
            "caveats": self.caveats,
            "notes": self.notes,
            "has_later": self.has_later,
            "obstacle": self.obstacle,
        }
