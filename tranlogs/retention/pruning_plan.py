"""Pruning to a budget: which segments and checkpoints are deleted (pure, over the catalog's rows).

Protected data are what recovery to the newest step needs: the *anchor* (the newest checkpoint that was read back and found
sound), all of the log after it, and segments that are not sealed. Protected data are never pruned. Of the other data, those
that exceed a limit on age or number are always pruned. Above the high watermark of the budget, segments are pruned in
ascending order of value, then older checkpoints, oldest first, until usage is below the low watermark. If that is not enough,
a new checkpoint is requested from the trainer, which makes more of the log prunable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..base.errors import UsageError
from ..catalog import CheckpointRow, SegmentRow, TimelineRow
from ..catalog.lineage import Limits, is_on_lineage, trace_lineage


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits for one journal.

    Attributes:
        nbytes: bytes on disk, of segments and checkpoints; None for no limit.
        high: the high watermark: pruning starts above this share of `nbytes`.
        low: the low watermark: pruning ends below this share of `nbytes`.
        age_seconds_max: the highest age of sealed segments and checkpoints; None for no limit.
        segments_max: the number of sealed segments to keep; None for no limit.
        checkpoints_max: the number of checkpoints to keep; None for no limit.
    """

    nbytes: int | None = None
    high: float = 0.95
    low: float = 0.8
    age_seconds_max: float | None = None
    segments_max: int | None = None
    checkpoints_max: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high <= 1:
            raise UsageError(f"low and high must satisfy 0 < low <= high <= 1, got low={self.low}, high={self.high}")
        for name, least in (("nbytes", 1), ("segments_max", 0), ("checkpoints_max", 1), ("age_seconds_max", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name} must be at least {least}, got {value}")


@dataclass(frozen=True, slots=True)
class Pruning:
    """Segments and checkpoints to prune.

    Attributes:
        segments: the segments to prune.
        checkpoints: the checkpoints to prune.
        reasons: the reason for each, by the name of the file or folder.
        bytes_before: bytes on disk of the journal before pruning.
        bytes_after: bytes on disk after pruning.
        wants_checkpoint: True if protected data alone exceed the budget.
    """

    segments: tuple[SegmentRow, ...] = ()
    checkpoints: tuple[CheckpointRow, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    bytes_before: int = 0
    bytes_after: int = 0
    wants_checkpoint: bool = False


def bytes_on_disk(segments: Sequence[SegmentRow], checkpoints: Sequence[CheckpointRow]) -> int:
    """Return the bytes that a journal takes. Segment files are preallocated: they have their full size from the start."""
    return sum(row.size for row in segments) + sum(row.nbytes for row in checkpoints)


def trace_newest_lineage(checkpoints: Sequence[CheckpointRow], timelines: Sequence[TimelineRow]) -> Limits:
    """Return the timelines that lead to the newest one."""
    return trace_lineage(timelines, max([row.timeline for row in checkpoints] + [row.number for row in timelines], default=1))


def is_protected(row: SegmentRow, anchor: CheckpointRow | None, limits: Limits) -> bool:
    """Return True if recovery to the newest step may need a segment."""
    if row.state == "retired":
        return False
    if anchor is None or row.state != "sealed":
        return True
    if row.last_sequence <= anchor.sequence:
        return False
    limit = limits.get(row.timeline, -1)  # on an abandoned timeline only segments before the fork count
    return limit is None or row.base_sequence < limit


def plan_pruning(
    budget: Budget,
    segments: Sequence[SegmentRow],
    checkpoints: Sequence[CheckpointRow],
    timelines: Sequence[TimelineRow],
    values: Mapping[int, float],
    *,
    anchor: CheckpointRow | None,
    now: float,
) -> Pruning:
    """Decide what to prune.

    Args:
        budget: the limits.
        segments: the rows of all segments, including retired ones, whose files still exist.
        checkpoints: the published checkpoints.
        timelines: all timelines.
        values: the values of sealed segments, by ordinal. A segment without one counts as worth most.
        anchor: the newest sound checkpoint on the newest lineage; None if there is none. Nothing is pruned then.
        now: the time, in seconds since 1970.
    """
    limits = trace_newest_lineage(checkpoints, timelines)
    assert anchor is None or is_on_lineage(anchor, limits), "the anchor lies on the newest lineage"
    before = bytes_on_disk(segments, checkpoints)
    free = [row for row in segments if row.state == "sealed" and not is_protected(row, anchor, limits)]
    free.sort(key=lambda row: (values.get(row.ordinal, 1.0), row.ordinal))
    older = (
        [] if anchor is None else [row for row in checkpoints if row.name != anchor.name and _is_prunable(row, anchor, limits)]
    )
    older.sort(key=lambda row: (is_on_lineage(row, limits), row.sequence, row.timeline))
    reasons = _apply_limits(budget, segments, checkpoints, free, older, now)
    after = before - sum(row.size for row in free if row.file in reasons) - sum(r.nbytes for r in older if r.name in reasons)
    after -= sum(row.size for row in segments if row.state == "retired")  # their files are deleted, too, when space is short
    wants = False
    if budget.nbytes is not None and after > budget.high * budget.nbytes:
        low = budget.low * budget.nbytes
        for segment in free:
            if after > low and segment.file not in reasons:
                reasons[segment.file] = f"over budget, and its value is {values.get(segment.ordinal, 1.0):.3f}"
                after -= segment.size
        for checkpoint in older:
            if after > low and checkpoint.name not in reasons:
                reasons[checkpoint.name] = "over budget, and a newer checkpoint is sound"
                after -= checkpoint.nbytes
        wants = after > budget.high * budget.nbytes
    pruned_segments = tuple(row for row in free if row.file in reasons)
    pruned_checkpoints = tuple(row for row in older if row.name in reasons)
    return Pruning(pruned_segments, pruned_checkpoints, reasons, before, after, wants)


def _is_prunable(row: CheckpointRow, anchor: CheckpointRow, limits: Limits) -> bool:
    """Return True if a checkpoint may be pruned. One newer than the anchor is kept: it is not known to be sound yet."""
    return not is_on_lineage(row, limits) or row.sequence <= anchor.sequence


def _apply_limits(
    budget: Budget,
    segments: Sequence[SegmentRow],
    checkpoints: Sequence[CheckpointRow],
    free: Sequence[SegmentRow],
    older: Sequence[CheckpointRow],
    now: float,
) -> dict[str, str]:
    """Return the prunable segments (`free`) and checkpoints (`older`) that exceed a limit on age or number, with reasons."""
    reasons: dict[str, str] = {}
    age = budget.age_seconds_max
    if age is not None:
        reasons |= {row.file: f"older than {age:g} s" for row in free if row.sealed_at < now - age}
        reasons |= {row.name: f"older than {age:g} s" for row in older if row.created_at < now - age}
    if budget.segments_max is not None:
        surplus = sum(row.state == "sealed" and row.file not in reasons for row in segments) - budget.segments_max
        for row in [row for row in free if row.file not in reasons][: max(surplus, 0)]:
            reasons[row.file] = f"more than {budget.segments_max} segments"
    if budget.checkpoints_max is not None:
        surplus = sum(row.name not in reasons for row in checkpoints) - budget.checkpoints_max
        for checkpoint in [row for row in older if row.name not in reasons][: max(surplus, 0)]:
            reasons[checkpoint.name] = f"more than {budget.checkpoints_max} checkpoints"
    return reasons
