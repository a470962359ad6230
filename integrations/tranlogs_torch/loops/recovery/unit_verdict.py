"""The verdict of all ranks on a unit that each of them has computed again (pure).

outcomes of the ranks                                       verdict
a rank differs                                              different: all ranks set back what they have recorded
some ranks have come to the end of the unit, others not     different
all have come to its end, and are equal                     equal
all are in the middle of the unit                           none yet
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal

_TEXTS_MAX = 2  # ranks whose difference is described in full


@dataclass(frozen=True, slots=True)
class UnitOutcome:
    """Outcome of the recheck on one rank.

    Attributes:
        is_over: True if the rank has come to the end of its unit.
        text: the difference between its unit and the record; "" if there is none.
        is_wrong: True if the difference is larger than a rounding error.
    """

    is_over: bool
    text: str = ""
    is_wrong: bool = False

    def pack(self) -> list[Any]:
        """Return the outcome as plain values that can be sent to other ranks."""
        return list(astuple(self))


@dataclass(frozen=True, slots=True)
class UnitVerdict:
    """Verdict that all ranks follow.

    Attributes:
        kind: see the table of the module.
        texts: what differs, and on which ranks.
        is_wrong: True if a difference is larger than a rounding error.
    """

    kind: Literal["equal", "different"]
    texts: tuple[str, ...] = ()
    is_wrong: bool = False


def conclude(outcomes: Sequence[UnitOutcome]) -> UnitVerdict | None:
    """Return the verdict on the outcomes of all ranks, by rank; None if it is not known yet."""
    texts = {rank: one.text for rank, one in enumerate(outcomes) if one.text}
    if texts:
        return UnitVerdict("different", _name_ranks(texts, len(outcomes)), any(one.is_wrong for one in outcomes))
    if all(one.is_over for one in outcomes):
        return UnitVerdict("equal")
    late = [rank for rank, one in enumerate(outcomes) if not one.is_over]
    if len(late) == len(outcomes):
        return None
    text = (
        f"rank {late[0]} has not come to the end of its unit, and others have: the script's loop divides its work differently"
    )
    return UnitVerdict("different", (text,), True)


def _name_ranks(texts: dict[int, str], world: int) -> tuple[str, ...]:
    """Return the texts with their ranks; one text alone if all ranks have the same."""
    if len(texts) == world and len(set(texts.values())) == 1:
        return (texts[0],)
    found = [f"rank {rank}: {text}" for rank, text in texts.items()]
    more = len(found) - _TEXTS_MAX
    return (*found[:_TEXTS_MAX], *([f"{more} more ranks differ from their records, too"] if more > 0 else []))
