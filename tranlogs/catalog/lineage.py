"""Lineage of a timeline: the path from the root of the tree of timelines to it (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from .rows import CheckpointRow, TimelineRow

Limits = dict[int, int | None]  # the timelines of a lineage, each with the last sequence number on it; None for no limit


def trace_lineage(timelines: Iterable[TimelineRow], number: int) -> Limits:
    """Return the timelines that lead to a timeline, each with the last sequence number that belongs to the lineage.

    Args:
        number: the number of the timeline that they lead to. Its limit is None.
    """
    rows = {row.number: row for row in timelines}
    limits: Limits = {number: None}
    limit: int | None = None
    while (row := rows.get(number)) is not None and row.parent and row.parent not in limits:
        limit = row.fork_sequence if limit is None else min(limit, row.fork_sequence)
        limits[row.parent] = limit
        number = row.parent
    return limits


def is_on_lineage(row: CheckpointRow, limits: Limits) -> bool:
    """Return True if a checkpoint lies on a lineage."""
    limit = limits.get(row.timeline, -1)
    return limit is None or row.sequence <= limit
