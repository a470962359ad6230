"""What goes when space is short: a pure decision over the catalog's rows.

Protected is what recovery to the newest step needs: the *anchor* (the newest checkpoint that was read back and found
sound), all of the log behind it, and what is not sealed. Protected data never go. Of the rest, what a rule on age or
number gives up goes in any case; above the high watermark of the budget segments follow in ascending value, then older
checkpoints, oldest first, until usage is below the low watermark. If that is not enough a new checkpoint is wanted, behind
which there will be more to give up.
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
        nbytes: on disk, of segments and checkpoints; None for no limit.
        high: pruning begins above this share of it ...
        low: ... and ends below this one.
        age_seconds_max: of sealed segments and checkpoints.
        segments_max: sealed segments that may be kept.
        checkpoints_max: checkpoints that may be kept.
    """

    nbytes: int | None = None
    high: float = 0.95
    low: float = 0.8
    age_seconds_max: float | None = None
    segments_max: int | None = None
    checkpoints_max: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high <= 1:
            raise UsageError(f"watermarks low={self.low}, high={self.high}: 0 < low <= high <= 1 is wanted")
        for name, least in (("nbytes", 1), ("segments_max", 0), ("checkpoints_max", 1), ("age_seconds_max", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name}={value}: at least {least}")


@dataclass(frozen=True, slots=True)
class Pruning:
    """What is to go, and why.

    Attributes:
        segments: that go.
        checkpoints: that go.
        reasons: a sentence for each, by file or name.
        bytes_before: on disk, of the journal.
        bytes_after: when all that has gone.
        wants_checkpoint: whether only protected data are left above the budget.
    """

    segments: tuple[SegmentRow, ...] = ()
    checkpoints: tuple[CheckpointRow, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    bytes_before: int = 0
    bytes_after: int = 0
    wants_checkpoint: bool = False


def bytes_on_disk(segments: Sequence[SegmentRow], checkpoints: Sequence[CheckpointRow]) -> int:
    """What a journal takes: segment files have their full size from the beginning."""
    return sum(row.size for row in segments) + sum(row.nbytes for row in checkpoints)


def trace_newest_lineage(checkpoints: Sequence[CheckpointRow], timelines: Sequence[TimelineRow]) -> Limits:
    """The timelines that lead to the newest one."""
    return trace_lineage(timelines, max([row.timeline for row in checkpoints] + [row.number for row in timelines], default=1))


def is_protected(row: SegmentRow, anchor: CheckpointRow | None, limits: Limits) -> bool:
    """Whether recovery to the newest step may need a segment."""
    if row.state == "retired":
        return False
    if anchor is None or row.state != "sealed":
        return True
    if row.last_sequence <= anchor.sequence:
        return False
    limit = limits.get(row.timeline, -1)  # of a timeline that was left behind only what came before the fork counts
    return limit is None or row.base_sequence < limit


def plan_pruning(budget: Budget, segments: Sequence[SegmentRow], checkpoints: Sequence[CheckpointRow],
                 timelines: Sequence[TimelineRow], values: Mapping[int, float], *, anchor: CheckpointRow | None,
                 now: float) -> Pruning:  # fmt: skip
    """Decide what goes (pure).

    Args:
        budget: limits.
        segments: all rows, retired ones too: their files are still there.
        checkpoints: the published ones.
        timelines: all.
        values: of sealed segments, by ordinal; one that is missing counts as worth most.
        anchor: the newest sound checkpoint on the newest trace_lineage; None if there is none: then nothing goes.
        now: seconds since 1970.
    """
    limits = trace_newest_lineage(checkpoints, timelines)
    assert anchor is None or is_on_lineage(anchor, limits), "an anchor lies on the way to the newest timeline"
    before = bytes_on_disk(segments, checkpoints)
    free = [row for row in segments if row.state == "sealed" and not is_protected(row, anchor, limits)]
    free.sort(key=lambda row: (values.get(row.ordinal, 1.0), row.ordinal))
    older = [] if anchor is None else [row for row in checkpoints if row.name != anchor.name and _is_older(row, anchor, limits)]
    older.sort(key=lambda row: (is_on_lineage(row, limits), row.sequence, row.timeline))
    reasons = _by_rules(budget, segments, checkpoints, free, older, now)
    after = before - sum(row.size for row in free if row.file in reasons) - sum(r.nbytes for r in older if r.name in reasons)
    after -= sum(row.size for row in segments if row.state == "retired")  # their files go, too, where space is short
    wants = False
    if budget.nbytes is not None and after > budget.high * budget.nbytes:
        low = budget.low * budget.nbytes
        for segment in free:
            if after > low and segment.file not in reasons:
                reasons[segment.file] = f"over budget, and worth {values.get(segment.ordinal, 1.0):.3f}"
                after -= segment.size
        for checkpoint in older:
            if after > low and checkpoint.name not in reasons:
                reasons[checkpoint.name] = "over budget, and a newer checkpoint is sound"
                after -= checkpoint.nbytes
        wants = after > budget.high * budget.nbytes
    return Pruning(tuple(row for row in free if row.file in reasons), tuple(row for row in older if row.name in reasons),
                   reasons, before, after, wants)  # fmt: skip


def _is_older(row: CheckpointRow, anchor: CheckpointRow, limits: Limits) -> bool:
    """A newer one than the anchor is not known to be sound yet, and stays."""
    return not is_on_lineage(row, limits) or row.sequence <= anchor.sequence


def _by_rules(budget: Budget, segments: Sequence[SegmentRow], checkpoints: Sequence[CheckpointRow],
              free: Sequence[SegmentRow], older: Sequence[CheckpointRow], now: float) -> dict[str, str]:  # fmt: skip
    """What age and number give up, of what may go."""
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
