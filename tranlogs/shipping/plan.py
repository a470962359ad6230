"""What is sent next, how far the store has come, and what it gives up: pure decisions over rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..catalog import CheckpointRow, SegmentRow, TimelineRow
from ..lineage import Limits, is_on
from ..retention.budget import newest_lineage
from ..retention.keep import RetentionPolicy
from ..retention.prune import plan_retirement
from .manifest import Manifest, Shipped


@dataclass(frozen=True, slots=True)
class Look:
    """What the catalog lists."""

    segments: Sequence[SegmentRow]
    checkpoints: Sequence[CheckpointRow]
    timelines: Sequence[TimelineRow]

    @property
    def limits(self) -> Limits:
        """The timelines that lead to the newest one."""
        return newest_lineage(self.checkpoints, self.timelines)


def plan_sending(look: Look, shipped: Mapping[str, Shipped], keep: RetentionPolicy,
                 left_out: Collection[str] = ()) -> list[SegmentRow | CheckpointRow]:  # fmt: skip
    """What is to be sent, the most urgent first.

    The log goes in order, since only a log without holes brings recovery further. A checkpoint goes first where the store has
    none, or where it is smaller than the log before it that is still to be sent: recovery is further on the sooner.

    Args:
        look: what the catalog lists.
        shipped: what the store has, by name.
        keep: which checkpoints the store keeps; nothing is sent that it would give up at once.
        left_out: names of what cannot be sent.
    """
    limits = look.limits
    known = {one.row.name: one.row for one in shipped.values() if isinstance(one.row, CheckpointRow)}
    known |= {row.name: row for row in look.checkpoints}
    ours = sorted((row for row in known.values() if is_on(row, limits)), key=lambda row: row.sequence)
    kept = plan_retirement(keep, ours, ())
    staying = [row for row in ours if row not in kept.checkpoints]
    horizon = min((row.sequence for row in staying), default=0)
    here = {row.name for row in look.checkpoints}
    checkpoints = [row for row in staying if row.name in here and row.name not in shipped and row.name not in left_out]
    segments = [row for row in look.segments if _is_wanted(row, limits, horizon) and row.file not in shipped
                and row.file not in left_out]  # fmt: skip
    segments.sort(key=lambda row: (row.base_sequence, row.ordinal))
    if not checkpoints:
        return [*segments]
    newest = checkpoints[-1]
    has_one = any(name in shipped for name in (row.name for row in staying))
    before = sum(row.used_bytes for row in segments if row.last_sequence <= newest.sequence)
    rest = [row for row in reversed(checkpoints) if row is not newest]
    if not has_one or before > newest.nbytes:
        behind = [row for row in segments if row.last_sequence > newest.sequence]
        return [newest, *behind, *(row for row in segments if row not in behind), *rest]
    return [*segments, newest, *rest]


def _is_wanted(row: SegmentRow, limits: Limits, horizon: int) -> bool:
    limit = limits.get(row.timeline, -1)
    return row.state == "sealed" and row.last_sequence > horizon and (limit is None or row.base_sequence < limit)


def chain_from(start: CheckpointRow, segments: Sequence[Shipped], limits: Limits) -> list[Shipped]:
    """The segments that lead on from a checkpoint without a hole."""
    at, found = start.sequence, []
    for one in sorted(segments, key=lambda one: (one.row.base_sequence, one.row.ordinal)):  # type: ignore[union-attr]
        row = one.row
        assert isinstance(row, SegmentRow)
        end = _end(row, limits)
        if row.base_sequence <= at < end:
            at = end
            found.append(one)
    return found


def _end(row: SegmentRow, limits: Limits) -> int:
    limit = limits.get(row.timeline, -1)
    return row.last_sequence if limit is None else min(row.last_sequence, limit)


def reach(checkpoints: Sequence[CheckpointRow], segments: Sequence[Shipped], timelines: Sequence[TimelineRow],
          limits: Limits) -> int:  # fmt: skip
    """The newest step that recovery from these alone comes to; 0 where there is no checkpoint."""
    ours = [row for row in checkpoints if is_on(row, limits)]
    if not ours:
        return 0
    start = max(ours, key=lambda row: row.sequence)
    step = start.step
    for one in chain_from(start, segments, limits):
        limit = limits.get(one.row.timeline)
        if limit is None or one.objects.boundary_sequence <= limit:
            step = max(step, one.objects.boundary_step)
        else:  # a timeline was left within it: at a boundary
            step = max(step, *(row.fork_step for row in timelines if row.parent == one.row.timeline and row.number in limits))
    return step


def reach_of(manifest: Manifest, look: Look, *, durable: bool = False) -> int:
    """How far the store has come on the newest timeline; with `durable` what it calls so alone."""
    checkpoints = [one.row for one in manifest.checkpoints if one.objects.is_durable or not durable]
    segments = [one for one in manifest.segments if one.objects.is_durable or not durable]
    return reach([row for row in checkpoints if isinstance(row, CheckpointRow)], segments, look.timelines, look.limits)


def plan_giving_up(shipped: Mapping[str, Shipped], keep: RetentionPolicy, timelines: Sequence[TimelineRow]) -> list[str]:
    """What the store does not keep: names of checkpoints that the policy gives up, and of the log behind the oldest kept one.

    Only what is durable counts as kept; the rest stays in any case.
    """
    durable = [one.row for one in shipped.values() if one.objects.is_durable]
    checkpoints = [row for row in durable if isinstance(row, CheckpointRow)]
    segments = [row for row in durable if isinstance(row, SegmentRow)]
    gone = plan_retirement(keep, checkpoints, segments, timelines)
    return [row.name for row in gone.checkpoints] + [row.file for row in gone.segments]
