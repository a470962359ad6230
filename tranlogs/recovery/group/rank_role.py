"""Role of one rank in a group recovery: a pure decision over the boundary that the group has chosen."""

from __future__ import annotations

from dataclasses import dataclass

from .decision.generations import GroupTarget


@dataclass(frozen=True, slots=True)
class RankRole:
    """Role of one rank in one attempt of a group recovery.

    Attributes:
        rank: the rank.
        world: the number of processes.
        target: the generation that is recovered, and the boundary in it.
        resharded: the first timelines of generations whose parameters are sharded in another way now.
    """

    rank: int
    world: int
    target: GroupTarget
    resharded: frozenset[int]

    @property
    def is_resharded(self) -> bool:
        """True if parameters are sharded in another way now."""
        generation = self.target.generation
        is_resized = generation.is_sharded and generation.world != self.world
        return generation.first_timeline in self.resharded or is_resized

    @property
    def has_part(self) -> bool:
        """True if this rank has a journal of the generation that is recovered."""
        return self.rank < self.target.generation.world and self.rank not in self.target.agreement.lost

    @property
    def starts_generation(self) -> bool:
        """True if a generation starts: the number of processes or the sharding changed, or a newer one is given up."""
        return self.target.generation.world != self.world or self.is_resharded or not self.target.is_newest

    @property
    def is_newcomer(self) -> bool:
        """True if the run did not have this rank, or holds no state that only this rank has."""
        is_in_run = self.rank < self.target.generation.world
        base = self.target.agreement.bases[self.rank] if is_in_run else None
        return not self.has_part and (not is_in_run or (base is None and self.starts_generation))

    @property
    def redoes_equal(self) -> bool:
        """True if this rank's journal is lost, and the rank redoes the journal of another rank with the same state."""
        return self.rank in self.target.agreement.lost_with_equals

    @property
    def redoes_copies(self) -> bool:
        """True if this rank's journal is lost, and the rank redoes the copies that the preceding rank has."""
        return self.rank in self.target.agreement.lost_with_copies

    def find_donor(self) -> int:
        """Return the rank whose journal this rank redoes.

        This is the rank itself if it has a part, the preceding rank if that one has copies, else the first rank with a part.
        """
        generation, agreement = self.target.generation, self.target.agreement
        if self.redoes_copies:
            return (self.rank - 1) % generation.world
        if self.has_part:
            return self.rank
        return next(summary.rank for summary in generation.summaries if summary.rank not in agreement.lost)
