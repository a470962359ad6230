"""The newest unit of a group of ranks, which training computes again to prove that the run resumes exactly.

what the ranks hold                                                    decision
a newest unit with a step, of the same form, from the same boundary    all ranks resume before it and compute it again
such a unit, and no checkpoints that lead all ranks to its begin       no rank computes anything again
units of different forms, or none on some rank                         the same
a lost journal                                                         the same
another number of processes, or another sharding                       the same: other processes compute other bits
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...base.errors import CorruptCheckpoint, RecoveryError
from ...log.record_format import EntryKind
from ..decoding import require_sound
from ..last_unit import LastUnit, find_last_unit
from ..recover import Recovered
from ..recovery_plan import RecoveryPlan
from .decide import Damage, Generation, GroupTarget, choose_target
from .exchange import Exchange, message
from .plan import RankPlanner

FindObstacle = Callable[[Recovered], str]  # why training cannot compute again the unit after a recovery; "" if it can

_NO_UNIT = "the log does not hold the newest one with a step"
_KINDS = {EntryKind.STEP: "s", EntryKind.BOUNDARY: "b", EntryKind.UNIT: "sb"}  # After-images are a rank's own.


@message
@dataclass(frozen=True, slots=True)
class UnitSummary:
    """Summary of the newest unit in one rank's log. Ranks exchange summaries to agree on the unit.

    Attributes:
        step: the step of the boundary before the unit.
        number: which of the boundaries at that step, counted from 1; 0 if only a checkpoint of it exists.
        kinds: a letter for each step and each boundary of the unit; "" if the log does not hold the unit.
    """

    step: int = 0
    number: int = 0
    kinds: str = ""


def find_obstacle(target: GroupTarget, world: int, *, is_resharded: bool) -> str:
    """Return why ranks that resume at a boundary cannot compute the unit before it again; "" if nothing is known."""
    agreement, recorded = target.agreement, target.generation.world
    if recorded != world:
        return f"{recorded} processes recorded the run, now there {'is' if world == 1 else 'are'} {world}"
    if is_resharded:
        return "parameters are sharded in another way now"
    if not target.is_newest:
        return "the run resumes before its last change of the number of processes or of the sharding"
    if agreement.lost:
        return f"the journal of rank {agreement.lost[0]} is lost or damaged"
    return ""


def choose_unit_start(
    generations: Sequence[Generation], target: GroupTarget, units: Sequence[UnitSummary], damage: Damage
) -> tuple[GroupTarget | None, str]:
    """Return the boundary before the unit that all ranks compute again, or None and the reason why there is no such unit.

    Args:
        generations: the parts of the run, the newest first.
        target: the boundary that ends the unit.
        units: the newest unit of each rank, by rank.
        damage: what could not be read in earlier attempts.
    """
    if any(not unit.kinds for unit in units):
        return None, name_rank([_NO_UNIT if not unit.kinds else "" for unit in units])
    if len({(unit.step, unit.kinds) for unit in units}) > 1:
        return None, "the newest units of the ranks do not have the same steps and boundaries"
    no_way = "the checkpoints of the ranks do not lead to its begin"
    try:
        start = choose_target(generations, damage, units[0].step)
    except RecoveryError:
        return None, no_way
    if start is None or start.generation is not target.generation or start.agreement.lost:
        return None, no_way
    if any(unit.number not in (0, start.agreement.boundary_number) for unit in units):
        return None, "the ranks do not have the same boundaries before the newest unit"
    return start, ""


def name_rank(texts: Sequence[str]) -> str:
    """Return the first text that is not empty, with its rank unless it is the same on all ranks."""
    if len(set(texts)) == 1:
        return texts[0]
    return next((f"on rank {rank} {text}" for rank, text in enumerate(texts) if text), "")


class CommonUnit:
    """The choice of the unit, made again in each attempt of a group recovery. All ranks must call `choose` and `is_refused`.

    Attributes:
        obstacle: why no unit is computed again; "" if one is, or if the run has no steps.
    """

    def __init__(self, rank: int, world: int, find_obstacle: FindObstacle, exchange: Exchange) -> None:
        self._rank, self._world, self._find_obstacle, self._exchange = rank, world, find_obstacle, exchange
        self._refusal = ""  # by a rank, in an earlier attempt
        self._found: tuple[LastUnit, RecoveryPlan] | None = None  # the unit, and the plan that leads to its end
        self.obstacle = ""

    def choose(
        self,
        generations: Sequence[Generation],
        target: GroupTarget,
        planner: RankPlanner,
        damage: Damage,
        *,
        is_resharded: bool,
    ) -> GroupTarget | None:
        """Return the boundary before the unit that ends at `target`; None if no unit is computed again."""
        self._found, self.obstacle = None, ""
        if not target.agreement.step:
            return None
        self.obstacle = self._refusal or find_obstacle(target, self._world, is_resharded=is_resharded)
        if self.obstacle:
            return None
        found, summary = self._find(target, planner)
        start, self.obstacle = choose_unit_start(generations, target, self._exchange.gather(summary), damage)
        self._found = found if start is not None else None
        return start

    def leave(self, recovered: Recovered) -> str:
        """Leave the unit to training, which computes it again. Return why that is not possible; "" if it is.

        Raises:
            DamagedEntry: the record of the unit is damaged.
        """
        if self._found is None:
            return ""
        unit, plan = self._found
        if (recovered.position.sequence, recovered.position.chain) != (unit.start.sequence, unit.start.chain):
            return "no checkpoint leads to its begin"
        require_sound(unit.links)
        recovered.last_unit = unit
        recovered.plan = replace(recovered.plan, has_later=plan.has_later, notes=plan.notes)
        return self._find_obstacle(recovered)

    def is_refused(self, obstacles: Sequence[str]) -> bool:
        """Return True if a rank cannot compute the unit again; the next attempt then ends after the unit."""
        self._refusal = name_rank(obstacles) or self._refusal
        return bool(self._refusal) and self._found is not None

    def _find(self, target: GroupTarget, planner: RankPlanner) -> tuple[tuple[LastUnit, RecoveryPlan] | None, UnitSummary]:
        """Return the newest unit of this rank with the plan that leads to its end, and the summary of the unit."""
        base = target.agreement.bases[self._rank]
        assert base is not None, "a rank whose journal is not lost has a checkpoint"
        try:
            log = planner.read_log(self._rank)
            plan = planner.plan(log, self._rank, base)
        except (CorruptCheckpoint, OSError):  # the attempt meets it again, where all ranks learn of it
            return None, UnitSummary()
        unit = find_last_unit(log.history, log.checkpoints, plan.position)
        if unit is None:
            return None, UnitSummary()
        kinds = "".join(_KINDS.get(link.kind, "") for link in unit.links)
        return (unit, plan), UnitSummary(unit.start.step, planner.count_boundaries(log, unit.start), kinds)
