"""The newest unit of a group of ranks, which training computes again: all ranks end before it, or none does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...base.errors import CorruptCheckpoint
from ..decoding import require_sound
from ..last_unit import LastUnit, find_last_unit
from ..recover import Recovered
from ..recovery_plan import RecoveryPlan
from .decision.agreement import Damage
from .decision.generations import Generation
from .decision.unit_choice import UnitSummary, choose_unit_start, find_obstacle, name_rank
from .journal_access import Transport
from .rank_plan import RankPlanner
from .rank_role import RankRole

FindObstacle = Callable[[Recovered], str]  # why training cannot compute again the unit after a recovery; "" if it can


class CommonUnit:
    """The choice of the unit, made again in each attempt of a group recovery. All ranks must call `choose` and `is_refused`.

    Args:
        rank: the rank of this process.
        world: the number of processes.
        find_obstacle: called when this rank has arrived before the unit.
        transport: connects the ranks.

    Attributes:
        obstacle: why no unit is computed again; "" if one is, or if the run has no steps.
    """

    def __init__(self, rank: int, world: int, find_obstacle: FindObstacle, transport: Transport) -> None:
        self._rank, self._world, self._find_obstacle, self._transport = rank, world, find_obstacle, transport
        self._refusal = ""  # by a rank, in an earlier attempt
        self._found: tuple[LastUnit, RecoveryPlan] | None = None  # the unit, and the plan that leads to its end
        self.obstacle = ""

    def choose(
        self, generations: Sequence[Generation], role: RankRole, planner: RankPlanner, damage: Damage
    ) -> RankRole | None:
        """Return the role of this rank in an attempt that ends before the unit; None if no unit is computed again.

        Args:
            generations: the parts of the run, the newest first.
            role: the role of this rank in an attempt that ends after the unit.
            planner: plans that attempt.
            damage: what could not be read in earlier attempts.
        """
        self._found, self.obstacle = None, ""
        if not role.target.agreement.step:
            return None
        self.obstacle = self._refusal or find_obstacle(role.target, self._world, is_resharded=role.is_resharded)
        if self.obstacle:
            return None
        found, number = self._find(role, planner)
        summary = UnitSummary.of(None if found is None else found[0], number)
        summaries = [UnitSummary(*packed) for packed in self._transport.gather(summary.pack())]
        start, self.obstacle = choose_unit_start(generations, role.target, summaries, damage)
        if start is None:
            return None
        self._found = found
        return replace(role, target=start)

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

    def is_refused(self, outcomes: Sequence[dict[str, Any]]) -> bool:
        """Return True if a rank cannot compute the unit again; the next attempt then ends after the unit."""
        self._refusal = name_rank([outcome["obstacle"] for outcome in outcomes]) or self._refusal
        return bool(self._refusal) and self._found is not None

    def _find(self, role: RankRole, planner: RankPlanner) -> tuple[tuple[LastUnit, RecoveryPlan] | None, int]:
        """Return the newest unit of this rank with the plan that leads to its end, and the number of the boundary before it."""
        base = role.target.agreement.bases[self._rank]
        assert base is not None, "a rank whose journal is not lost has a checkpoint"
        try:
            log = planner.read_log(self._rank)
            plan = planner.plan(log, self._rank, base)
        except (CorruptCheckpoint, OSError):  # the attempt meets it again, where all ranks learn of it
            return None, 0
        unit = find_last_unit(log.history, log.checkpoints, plan.position)
        return (None, 0) if unit is None else ((unit, plan), planner.count_boundaries(log, unit.start))
