"""Timelines form a tree; recovery and retention look at the path from its root to the newest one."""

from __future__ import annotations

from collections.abc import Iterable

from . import CheckpointRow, TimelineRow

Limits = dict[int, int | None]


def lineage(timelines: Iterable[TimelineRow], number: int) -> Limits:
    """The timelines that lead to `number`, each with the last sequence number that belongs to it (None: all)."""
    rows = {row.number: row for row in timelines}
    limits: Limits = {number: None}
    limit: int | None = None
    while (row := rows.get(number)) is not None and row.parent and row.parent not in limits:
        limit = row.fork_sequence if limit is None else min(limit, row.fork_sequence)
        limits[row.parent] = limit
        number = row.parent
    return limits


def is_on(row: CheckpointRow, limits: Limits) -> bool:
    """Whether a checkpoint belongs to a lineage."""
    limit = limits.get(row.timeline, -1)
    return limit is None or row.sequence <= limit
