"""Choice of the unit that all ranks compute again, to prove that the run resumes exactly: a pure decision.

what the ranks hold                                                    decision
a newest unit with a step, of the same form, from the same boundary    all ranks resume before it and compute it again
such a unit, and no checkpoints that lead all ranks to its begin       no rank computes anything again
units of different forms, or none on some rank                         the same
a lost journal, or a rank that has run out of data                     the same
another number of processes, or another sharding                       the same: other processes compute other bits
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from ....base.errors import RecoveryError
from ....log.record_format import EntryKind
from ...last_unit import LastUnit
from .agreement import Damage
from .generations import Generation, GroupTarget, choose_target

_NO_UNIT = "the log does not hold the newest one with a step"
_KINDS = {EntryKind.STEP: "s", EntryKind.BOUNDARY: "b"}  # After-images are a rank's own.


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

    @classmethod
    def of(cls, unit: LastUnit | None, number: int) -> UnitSummary:
        """Return the summary of a unit; None is a unit that the log does not hold."""
        if unit is None:
            return cls()
        return cls(unit.start.step, number, "".join(_KINDS.get(link.kind, "") for link in unit.links))

    def pack(self) -> list[int | str]:
        """Return the summary as plain values that can be sent to other ranks."""
        return list(astuple(self))


def find_obstacle(target: GroupTarget, world: int, *, is_resharded: bool) -> str:
    """Return why ranks that resume at a boundary cannot compute the unit before it again; "" if nothing is known.

    Args:
        target: the boundary.
        world: the number of processes.
        is_resharded: True if parameters are sharded in another way now.
    """
    agreement, recorded = target.agreement, target.generation.world
    if recorded != world:
        return f"{recorded} processes recorded the run, now there {'is' if world == 1 else 'are'} {world}"
    if is_resharded:
        return "parameters are sharded in another way now"
    if not target.is_newest:
        return "the run resumes before its last change of the number of processes or of the sharding"
    if agreement.lost:
        return f"the journal of rank {agreement.lost[0]} is lost or damaged"
    if agreement.exhausted:
        return f"rank {agreement.exhausted[0][0]} has run out of data"
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
    if start is None or start.generation is not target.generation or start.agreement.lost or start.agreement.exhausted:
        return None, no_way
    if any(unit.number not in (0, start.agreement.boundary_number) for unit in units):
        return None, "the ranks do not have the same boundaries before the newest unit"
    return start, ""


def name_rank(texts: Sequence[str]) -> str:
    """Return the first text that is not empty, with its rank unless it is the same on all ranks."""
    if len(set(texts)) == 1:
        return texts[0]
    return next((f"on rank {rank} {text}" for rank, text in enumerate(texts) if text), "")
