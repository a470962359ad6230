"""What the recovery of one rank among several begins with and comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ...base.errors import error_text
from ..protocol import Recoverable
from ..recover import Recovered
from .agreement import Damage
from .gradient_shards import Shares
from .journal_access import Channel


class SharedState(Recoverable, Protocol):
    """A state whose records may be shares.

    Attributes:
        shares: where to find the others'; None outside of a recovery.
        world: how many processes recorded what is brought back.
    """

    shares: Shares | None
    world: int

    def is_relaid(self, sharding: Mapping[str, Any]) -> bool:
        """Whether a parameter's parts lie otherwise over the processes than was recorded (`environment["sharding"]`)."""
        ...

    def part(self) -> SharedState:
        """A state that is made as a checkpoint describes it, at `restore`: for what another process has recorded."""
        ...

    def take(self, parts: dict[int, Any], owners: Mapping[int, int], rank: int, channel: Channel) -> dict[str, Any]:
        """Set all state from the parts that ranks of before had. All processes must call it.

        Args:
            parts: those that this process has redone, by rank. They are used up.
            owners: for each rank of before the process that has redone its part.
            rank: of this process.
            channel: connects them.

        Returns:
            The boundary's body, as it is now this process's own.

        Raises:
            StateMismatch: the state does not fit the run; nothing was touched.
            UsageError: the parts do not make up whole parameters.
        """
        ...

    def adopt(self, sources: Sequence[Path], rank: int, *, is_start: bool) -> list[str]:
        """Set all state of a rank whose journal is gone from other ranks' checkpoints of the same step.

        Args:
            sources: folders of checkpoints, the first of which gives what all ranks share.
            rank: whose own part is wanted: one of the checkpoints may have it.
            is_start: whether no step was taken yet: what was built is right for the part that is nowhere.

        Returns:
            What is not as it was, in words.
        """
        ...

    def digest(self, *, anyway: bool = False) -> str:
        """A digest of what is the same on all ranks; empty where there is no such thing, unless it is wanted `anyway`."""
        ...


@dataclass(slots=True)
class Landing:
    """The outcome for one rank.

    Attributes:
        recovered: as of a recovery alone; None if the rank starts as it was built.
        timeline: the number of the timeline on which all go on.
        is_new: whether that timeline is a new one.
        since: the timeline with which their era began.
        is_begun: whether it begins now, so that all of them must begin with a checkpoint.
        is_resized: whether that is because their number has changed.
        is_adopted: whether the rank's own journal was gone, so that it must begin with a checkpoint.
        is_resharded: whether parts of parameters lie otherwise, so that what was before counts until all have a checkpoint.
        beside: this rank, if what is its own is in the boundary of the rank before, with which it landed; else -1.
        past: the ids of the timelines that lead to what goes on, as they are recorded (past.py).
        newcomer: a name for a rank that has nothing of its own to go on with, the same at each try; empty for any other.
        doubts: what is not as it was, in words.
        notes: what else should be told.
    """

    recovered: Recovered | None
    timeline: int
    is_new: bool
    since: int
    is_begun: bool
    is_resized: bool
    is_adopted: bool
    is_resharded: bool = False
    past: list[list[Any]] = field(default_factory=list)
    newcomer: str = ""
    beside: int = -1
    doubts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Attempt:
    """What one rank came to, as it tells the others."""

    damage: Damage = field(default_factory=Damage)
    error: BaseException | None = None
    digest: str = ""
    has_later: bool = False
    doubts: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)  # what was damaged, in words

    def packed(self) -> dict[str, Any]:
        """Plain values, to be sent."""
        damage = {name: sorted(getattr(self.damage, name)) for name in ("checkpoints", "records", "landings", "shares")}
        return {**damage, "error": error_text(self.error) if self.error else "", "digest": self.digest, "doubts": self.doubts,
                "told": self.told, "has_later": self.has_later}  # fmt: skip
