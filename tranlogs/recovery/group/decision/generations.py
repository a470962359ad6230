"""Choice of the generation to recover: what the current number of processes trained, or an earlier number (pure).

A run that continues with another number of processes starts a generation, in which every process begins with a checkpoint.
Later recoveries need nothing that is older. The journals of the earlier generation stay as they are, including the journals of
ranks that no longer exist.

newest generation                                      the run continues
every member has its part, or some member trained      in the newest generation
a member has no part, and no member trained            in the earlier generation, if that reaches as far: a crash
                                                       interrupted the start of the newest one
no boundary of it can be reached, or not `step`        in the earlier generation
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ....base.errors import RecoveryError
from ..summary.journal_summary import JournalSummary
from .agreement import Agreement, Damage, agree


@dataclass(frozen=True, slots=True)
class Generation:
    """Part of a run that one number of processes trained.

    Attributes:
        first_timeline: the timeline that started the generation.
        world: the number of processes.
        summaries: one summary for each process; an empty one where the journal is gone.
    """

    first_timeline: int
    world: int
    summaries: tuple[JournalSummary, ...]

    @property
    def is_replicated(self) -> bool:
        """True if parameters and optimizer state were the same on all ranks."""
        return all(summary.is_replicated for summary in self.summaries if not summary.is_empty)

    @property
    def is_sharded(self) -> bool:
        """True if parameters were sharded over the ranks."""
        return any(summary.is_sharded for summary in self.summaries)

    @property
    def has_trained(self) -> bool:
        """True if any process took a step after the start of the generation."""
        return len(set().union(*(summary.list_steps() for summary in self.summaries))) > 1


@dataclass(frozen=True, slots=True)
class GroupTarget:
    """Generation and boundary at which all ranks resume.

    Attributes:
        generation: the generation that is recovered.
        agreement: the boundary in it, and each rank's checkpoint.
        is_newest: False if a later generation is given up.
    """

    generation: Generation
    agreement: Agreement
    is_newest: bool


def group_by_generation(summaries: Iterable[JournalSummary]) -> list[Generation]:
    """Return the generations of which any journal holds something, the newest first."""
    found: dict[int, dict[int, JournalSummary]] = {}
    for summary in summaries:
        if not summary.is_empty:
            found.setdefault(summary.first_timeline, {}).setdefault(summary.rank, summary)
    return [_make_generation(first_timeline, found[first_timeline]) for first_timeline in sorted(found, reverse=True)]


def _make_generation(first_timeline: int, members: dict[int, JournalSummary]) -> Generation:
    world = max(summary.world for summary in members.values())
    summaries = tuple(members.get(rank) or JournalSummary(rank, "", "") for rank in range(world))
    return Generation(first_timeline, world, summaries)


def choose_target(generations: Sequence[Generation], damage: Damage, step: int | None = None) -> GroupTarget | None:
    """Choose the generation and the boundary at which all ranks resume. Return None if every journal is empty.

    Raises:
        RecoveryError: there is no boundary that all ranks can reach, or none at `step`.
    """
    found: GroupTarget | None = None
    error: RecoveryError | None = None
    for generation in generations:
        try:
            agreement = agree(generation.summaries, damage, step)
        except RecoveryError as caught:
            error = error or caught
            continue
        assert agreement is not None, "a generation has at least one journal that is not empty"
        if found is None:
            found = GroupTarget(generation, agreement, generation is generations[0])
        elif agreement.step >= found.agreement.step and not agreement.lost:
            return GroupTarget(generation, agreement, False)
        if found.generation.has_trained or not found.agreement.lost:
            break
    if found is None and error is not None:
        raise error
    return found
