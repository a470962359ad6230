"""Which past a journal holds: a run that goes back and on again leaves behind what it had done before (pure).

All ranks give each timeline that they start together one id. `environment["past"]` of segments and checkpoints has those that
lead to it, the oldest first, each with the step at which it began. Journals whose ids part at some step hold the same run up
to there: one of them is an older copy, from before a rewind. What began before there were ids has the id "".

the ids of two journals                                what counts
the same, or one's go on where the other's end         all of both
the same up to some id                                 of the older past the steps before the other id began
none in common, and both known from their beginning    refused: they are of different runs
none in common otherwise                               all of both, as nothing is known
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...base.errors import RecoveryError

if TYPE_CHECKING:
    from .journal_summary import Holding

Past = tuple[tuple[str, int], ...]

UNKNOWN: Past = (("", 0),)
_IDS_MAX = 256


def new_id() -> str:
    """An id for a timeline, of which all ranks take that of rank 0."""
    return secrets.token_hex(8)


def past_of(environment: Mapping[str, Any]) -> Past:
    """What a segment or checkpoint says."""
    return tuple((str(name), int(step)) for name, step in environment.get("past", ())) or UNKNOWN


def gone_on(past: Past, step: int, name: str = "") -> list[list[Any]]:
    """The past of what goes on from a step, on a timeline that is called `name` if it is a new one; as it is recorded."""
    found = [*((known, began) for known, began in past if began <= step), *([(name, step)] if name else [])]
    if len(found) > _IDS_MAX:
        found = [*UNKNOWN, *found[1 - _IDS_MAX:]]  # fmt: skip
    return [] if tuple(found) == UNKNOWN else [list(one) for one in found]


def newest_past(holdings: Sequence[Holding]) -> Past:
    """The past of the group: that of the newest timeline, and of equal ones that which most ranks hold."""
    held = [holding for holding in holdings if not holding.is_empty]
    count = Counter(holding.past for holding in held)
    chief = max(held, key=lambda one: (one.timeline, len(one.past), count[one.past], -one.rank), default=None)
    return UNKNOWN if chief is None else chief.past


def of_one_past(holdings: Sequence[Holding]) -> tuple[list[Holding], list[str]]:
    """What counts of the journals, and one sentence for each of which not all does.

    Raises:
        RecoveryError: they are of different runs.
    """
    _demand_one_run([holding for holding in holdings if not holding.is_empty])
    found, told = [], []
    for holding in holdings:
        parting = _parting(holding.past, newest_past([one for one in holdings if one.since == holding.since]))
        last = max(holding.landings(), default=0)
        if parting is not None and parting < last:
            told.append(f"the journal of rank {holding.rank} left the run's past at step {parting}: what it holds behind that, "
                        f"to step {last}, is of a timeline that the others have gone back from, and does not "
                        "count")  # fmt: skip
            holding = _until(holding, parting)
        found.append(holding)
    return found, told


def _demand_one_run(held: Sequence[Holding]) -> None:
    newest = {holding.rank: holding.past for holding in sorted(held, key=lambda holding: holding.since)}
    count = Counter(past[0] for past in newest.values())
    chief = max(newest, key=lambda rank: (count[newest[rank][0]], -rank), default=-1)
    others = [rank for rank, past in newest.items() if _is_foreign(past, newest[chief])]
    if others:
        own = sorted(rank for rank in newest if rank not in others)
        verb = "is" if len(others) == 1 else "are"
        raise RecoveryError(f"{_named(sorted(others))} {verb} of another run than {_named(own)}. Put what belongs there in its "
                            "place (from a store: `tranlogs pull`), or move it away: then it counts as lost")  # fmt: skip


def _is_foreign(past: Past, other: Past) -> bool:
    is_known = past[0][0] != "" and other[0][0] != ""
    return is_known and not {name for name, _ in past} & {name for name, _ in other}


def _parting(past: Past, newest: Past) -> int | None:
    """The step at which two pasts part; None if the one leads to the other's end, or nothing is known."""
    names = [name for name, _ in newest]
    shared = [at for at, (name, _) in enumerate(past) if name in names]
    if not shared:
        return None
    begun = [began for _, began in (*past[shared[-1] + 1 :], *newest[names.index(past[shared[-1]][0]) + 1 :])]
    return min(begun, default=None)


def _until(holding: Holding, step: int) -> Holding:
    """What a journal holds up to a step."""
    stretches = tuple(replace(stretch, after=min(stretch.after, step), last=min(stretch.last, step),
                              landings={at: count for at, count in stretch.landings.items() if at <= step})
                      for stretch in holding.stretches)  # fmt: skip
    anchors = tuple(anchor for anchor in holding.anchors if anchor.step <= step)
    is_empty = not anchors and not any(stretch.landings for stretch in stretches)
    left = holding.left if holding.left <= step else -1
    return replace(holding, stretches=() if is_empty else stretches, anchors=anchors, left=left)


def _named(ranks: Sequence[int]) -> str:
    return f"the journal of rank {ranks[0]}" if len(ranks) == 1 else f"the journals of ranks {', '.join(map(str, ranks))}"
