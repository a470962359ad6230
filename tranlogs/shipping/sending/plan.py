"""What is sent next, how far the store has come, and what it gives up: pure decisions over rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ...catalog import CheckpointRow, CommonRow, SegmentRow, TimelineRow
from ...catalog.lineage import Limits, is_on_lineage
from ...retention.budget import trace_newest_lineage
from ...retention.keep_policy import RetentionPolicy
from ...retention.prune import plan_retirement
from ..inventory.manifest import Manifest, Shipped


@dataclass(frozen=True, slots=True)
class Look:
    """What the catalog lists, and how many journals the run has."""

    segments: Sequence[SegmentRow]
    checkpoints: Sequence[CheckpointRow]
    timelines: Sequence[TimelineRow]
    world: int = 1

    @property
    def limits(self) -> Limits:
        """The timelines that lead to the newest one."""
        return trace_newest_lineage(self.checkpoints, self.timelines)

    @property
    def step(self) -> int:
        """The newest step of sealed segments and checkpoints, on the way to the newest timeline."""
        limits = self.limits
        found = [row.step for row in self.checkpoints if is_on_lineage(row, limits)]
        found += [row.last_step for row in self.segments if row.state == "sealed" and limits.get(row.timeline, -1) is None]
        return max(found, default=0)


def look_of(manifest: Manifest) -> Look:
    """What a manifest lists, as a catalog would."""
    segments = [one.row for one in manifest.segments if isinstance(one.row, SegmentRow)]
    return Look(segments, [one.row for one in manifest.checkpoints if isinstance(one.row, CheckpointRow)], manifest.timelines)


def plan_sending(
    look: Look,
    shipped: Mapping[str, Shipped],
    keep: RetentionPolicy,
    left_out: Collection[str] = (),
    common: CommonRow | None = None,
) -> list[SegmentRow | CheckpointRow]:
    """What is to be sent, the most urgent first.

    The log goes in order, since only a log without holes brings recovery further. A checkpoint goes first where the store has
    none, or where it is smaller than the log before it that is still to be sent: recovery is further on the sooner.

    Args:
        look: what the catalog lists.
        shipped: what the store has, by name.
        keep: which checkpoints the store keeps; nothing is sent that it would give up at once.
        left_out: names of what cannot be sent.
        common: what all journals of the run have in the store; None where this is the only one.
    """
    limits = look.limits
    mine = {row.name: row for row in look.checkpoints}
    shipped = {name: one for name, one in shipped.items() if not one.objects.is_lost and _is_of(one, mine.get(name))}
    known = {one.row.name: one.row for one in shipped.values() if isinstance(one.row, CheckpointRow)}
    known |= {row.name: row for row in look.checkpoints}
    ours = sorted((row for row in known.values() if is_on_lineage(row, limits)), key=lambda row: row.sequence)
    kept = plan_retirement(keep, ours, (), common=common)
    staying = [row for row in ours if row not in kept.checkpoints]
    horizon = min((row.sequence for row in staying), default=0)
    here = {row.name for row in look.checkpoints}
    checkpoints = [row for row in staying if row.name in here and row.name not in shipped and row.name not in left_out]
    segments = [
        row
        for row in look.segments
        if _is_wanted(row, limits, horizon) and row.file not in shipped and row.file not in left_out
    ]
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


def _is_of(one: Shipped, mine: CheckpointRow | None) -> bool:
    """Whether the store's checkpoint is this journal's, and not one of the same name from another past."""
    return mine is None or (isinstance(one.row, CheckpointRow) and one.row.chain == mine.chain)


def _is_wanted(row: SegmentRow, limits: Limits, horizon: int) -> bool:
    limit = limits.get(row.timeline, -1)
    return row.state == "sealed" and row.last_sequence > horizon and (limit is None or row.base_sequence < limit)


def chain_from(
    start: CheckpointRow, segments: Sequence[Shipped], timelines: Sequence[TimelineRow], limits: Limits
) -> list[Shipped]:
    """The segments that lead on from a checkpoint, each linked to the one before by the digest that its first entry names, the
    way that leads furthest. As a log is chained, so is this: sequence numbers alone say nothing after a crash, behind which the
    log goes on from its newest boundary, beside what came after that.
    """
    ours = [one for one in segments if limits.get(_row(one).timeline, -1) != -1]
    parents = {row.number: (row.parent, row.fork_sequence) for row in timelines if row.number in limits and row.parent}
    forks = [one for one in ours if parents.get(_row(one).timeline, (0, -1))[1] == _row(one).base_sequence]
    ends: dict[tuple[int, str], list[Shipped]] = {}
    for one in ours:
        ends.setdefault((_row(one).base_sequence, one.objects.base_chain), []).append(one)
    best: dict[str, tuple[int, Shipped | None]] = {}
    for one in sorted(ours, key=lambda one: (_row(one).base_sequence, _row(one).ordinal), reverse=True):
        best[one.objects.name] = _furthest(one, ends, forks, parents, limits, best)
    firsts = sorted((one for one in ours if _begins(one, start)), key=lambda one: -_row(one).base_sequence)
    chosen: Shipped | None = max(firsts, key=lambda one: best[one.objects.name][0], default=None)
    found = []
    while chosen is not None:
        found.append(chosen)
        chosen = best[chosen.objects.name][1]
    return found


def _row(one: Shipped) -> SegmentRow:
    assert isinstance(one.row, SegmentRow)
    return one.row


def _begins(one: Shipped, start: CheckpointRow) -> bool:
    """Whether a checkpoint lies in a segment, or just before it."""
    if _row(one).base_sequence == start.sequence:
        return one.objects.base_chain == start.chain
    is_same = _row(one).timeline == start.timeline
    return is_same and _row(one).base_sequence < start.sequence <= one.objects.boundary_sequence


def _furthest(
    one: Shipped,
    ends: dict[tuple[int, str], list[Shipped]],
    forks: Sequence[Shipped],
    parents: dict[int, tuple[int, int]],
    limits: Limits,
    best: dict[str, tuple[int, Shipped | None]],
) -> tuple[int, Shipped | None]:
    """The sequence number that the log comes to by way of a segment, and the next one on the way."""
    row, place = _row(one), one.objects
    limit = limits[row.timeline]
    follows = [
        *ends.get((place.end_sequence, place.end_chain), []),
        *ends.get((place.boundary_sequence, place.boundary_chain), []),
    ]
    own = place.boundary_sequence
    if limit is not None:  # left for another timeline, at a boundary
        own = min(own, limit)
        follows = [other for other in follows if _row(other).timeline != row.timeline or _row(other).base_sequence < limit]
        follows += [
            other
            for other in forks
            if parents[_row(other).timeline][0] == row.timeline
            and row.base_sequence < _row(other).base_sequence <= place.boundary_sequence
        ]
    found: tuple[int, Shipped | None] = own, None
    for other in follows:
        furthest = best.get(other.objects.name, (0, None))[0]
        if other is not one and furthest > found[0]:
            found = furthest, other
    return found


def reach(
    checkpoints: Sequence[CheckpointRow], segments: Sequence[Shipped], timelines: Sequence[TimelineRow], limits: Limits
) -> int:
    """The newest step that recovery from these alone comes to; 0 where there is no checkpoint."""
    ours = [row for row in checkpoints if is_on_lineage(row, limits)]
    if not ours:
        return 0
    start = max(ours, key=lambda row: row.sequence)
    step = start.step
    for one in chain_from(start, segments, timelines, limits):
        limit = limits.get(_row(one).timeline)
        if limit is None or one.objects.boundary_sequence <= limit:
            step = max(step, one.objects.boundary_step)
        else:  # a timeline was left within it: at a boundary
            step = max(step, *(row.fork_step for row in timelines if row.parent == _row(one).timeline and row.number in limits))
    return step


def reach_of(manifest: Manifest, look: Look) -> int:
    """How far the store has come on the newest timeline, by what a manifest names and the store has not lost."""
    there = [one for one in manifest.shipped.values() if not one.objects.is_lost]
    segments = [one for one in there if isinstance(one.row, SegmentRow)]
    return reach([one.row for one in there if isinstance(one.row, CheckpointRow)], segments, look.timelines, look.limits)


def plan_giving_up(
    shipped: Mapping[str, Shipped], keep: RetentionPolicy, timelines: Sequence[TimelineRow], common: CommonRow | None = None
) -> list[str]:
    """What the store does not keep: names of checkpoints that the policy gives up, and of the log behind the oldest kept one.

    The newest checkpoint up to `common`, which all journals of the run have in the store, stays: they come back together. Only
    what is durable counts as kept; the rest stays in any case, but for what is lost and would go if it were not.
    """
    durable = [one.row for one in shipped.values() if one.objects.is_durable]
    checkpoints = [row for row in durable if isinstance(row, CheckpointRow)]
    lost = [one.row for one in shipped.values() if one.objects.is_lost]
    segments = [row for row in (*durable, *lost) if isinstance(row, SegmentRow)]
    gone = plan_retirement(keep, checkpoints, segments, timelines, common)
    kept = [row.sequence for row in checkpoints if row not in gone.checkpoints]
    useless = [row for row in lost if isinstance(row, CheckpointRow) and kept and row.sequence < min(kept)]
    return [row.name for row in (*gone.checkpoints, *useless)] + [row.file for row in gone.segments]
