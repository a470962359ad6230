"""The newest unit with a step in a log: training can compute it again, to prove that it resumes exactly (pure)."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass

from ..catalog import CheckpointRow
from ..log.record_format import Position
from .history import History, Link

_UNITS_MAX = 100  # units without a step that may follow the newest unit with one


@dataclass(frozen=True, slots=True)
class LastUnit:
    """The entries from the last boundary before the newest step up to the newest boundary.

    Attributes:
        start: the position before the first of them. It is that of a boundary or of a checkpoint.
        end: the position after the last one, which is a boundary.
        links: the entries.
    """

    start: Position
    end: Position
    links: tuple[Link, ...]


def find_last_unit(history: History, checkpoints: Iterable[CheckpointRow], end: Position) -> LastUnit | None:
    """Return the newest unit with a step before a position; None if the log does not hold it in full.

    Units without a step that follow it belong to it, since nothing could be compared in them but the auxiliary state.

    Args:
        history: the chained entries.
        checkpoints: the checkpoints of the lineage.
        end: the position of a boundary.
    """
    run, last = _find(history, end)
    if last < 0 or not run[last].kind.is_boundary:
        return None
    has_step, units = run[last].kind.is_step, 1
    for i in range(last - 1, -1, -1):
        if run[i].kind.is_boundary:
            if has_step:
                head = run[i].location.head
                return LastUnit(
                    Position(head.sequence, head.step, head.digest, end.timeline), end, tuple(run[i + 1 : last + 1])
                )
            units += 1
            if units > _UNITS_MAX:
                return None
        has_step |= run[i].kind.is_step
    first = run[0].location.head
    for row in checkpoints if has_step else ():
        if row.sequence == first.sequence - 1 and int(row.chain, 16) == first.chain:
            return LastUnit(Position(row.sequence, row.step, first.chain, end.timeline), end, tuple(run[: last + 1]))
    return None


def _find(history: History, position: Position) -> tuple[list[Link], int]:
    """Return the run of entries that holds the entry at a position, and the index of that entry; -1 if no run holds it."""
    for run in reversed(history.runs):
        i = bisect.bisect_left(run, position.sequence, key=_sequence)
        if i < len(run) and run[i].sequence == position.sequence and run[i].location.head.digest == position.chain:
            return run, i
    return [], -1


def _sequence(link: Link) -> int:
    return link.location.head.sequence
