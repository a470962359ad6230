"""Decisions over rows (pure): which items to send, up to which step the store holds the run, and which items expire."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..catalog import CheckpointRow, CommonRow, SegmentRow, TimelineRow
from ..catalog.rows import Limits, is_on_lineage
from ..retention.keep_policy import RetentionPolicy
from ..retention.prune import plan_retirement, trace_newest_lineage
from .manifest import Manifest, ShippedItem


@dataclass(frozen=True, slots=True)
class JournalContents:
    """Rows that a catalog or a manifest lists; the checkpoints are the published ones. The run has `world` journals."""

    segments: Sequence[SegmentRow]
    checkpoints: Sequence[CheckpointRow]
    timelines: Sequence[TimelineRow]
    world: int = 1

    @property
    def limits(self) -> Limits:
        """The timelines that lead to the newest one, each with its last sequence number on that path."""
        return trace_newest_lineage(self.checkpoints, self.timelines)

    @property
    def items(self) -> dict[str, SegmentRow | CheckpointRow]:
        """The sealed segments and the checkpoints, by name."""
        found: dict[str, SegmentRow | CheckpointRow] = {row.file: row for row in self.segments if row.state == "sealed"}
        return found | {row.name: row for row in self.checkpoints}

    @property
    def step(self) -> int:
        """The newest step of sealed segments and checkpoints on the newest timeline or those that lead to it."""
        limits = self.limits
        found = [row.step for row in self.checkpoints if is_on_lineage(row, limits)]
        found += [row.last_step for row in self.segments if row.state == "sealed" and limits.get(row.timeline, -1) is None]
        return max(found, default=0)


def list_contents(manifest: Manifest) -> JournalContents:
    """Return the rows that a manifest lists."""
    segments = [item.row for item in manifest.segments if isinstance(item.row, SegmentRow)]
    return JournalContents(
        segments, [item.row for item in manifest.checkpoints if isinstance(item.row, CheckpointRow)], manifest.timelines
    )


def plan_uploads(
    contents: JournalContents,
    shipped: Mapping[str, ShippedItem],
    keep: RetentionPolicy,
    excluded: Collection[str] = (),
    common: CommonRow | None = None,
) -> list[SegmentRow | CheckpointRow]:
    """Return the items to send, the most urgent first.

    Segments are sent in order, because recovery needs a log without holes. The newest checkpoint is sent first if the store
    has none, or if it is smaller than the unsent segments before it: recovery then reaches later steps sooner. Items that the
    store would drop at once are not sent.

    `excluded` are items that cannot be sent; `common` is the step that all journals of the run have in the store, or None.
    """
    limits = contents.limits
    local = {row.name: row for row in contents.checkpoints}
    shipped = {name: item for name, item in shipped.items() if not item.is_lost and _is_of(item, local.get(name))}
    known = {item.row.name: item.row for item in shipped.values() if isinstance(item.row, CheckpointRow)} | local
    ours = sorted((row for row in known.values() if is_on_lineage(row, limits)), key=lambda row: row.sequence)
    dropped = plan_retirement(keep, ours, (), common=common).checkpoints
    staying = [row for row in ours if row not in dropped]
    horizon = min((row.sequence for row in staying), default=0)
    absent = {name: row for name, row in contents.items.items() if name not in shipped and name not in excluded}
    segments = [row for row in absent.values() if isinstance(row, SegmentRow) and _is_wanted(row, limits, horizon)]
    segments.sort(key=lambda row: (row.base_sequence, row.ordinal))
    checkpoints = [row for row in staying if row.name in absent]
    if not checkpoints:
        return [*segments]
    newest, rest = checkpoints[-1], checkpoints[-2::-1]
    has_one = any(row.name in shipped for row in staying)
    before = sum(row.used_bytes for row in segments if row.last_sequence <= newest.sequence)
    if has_one and before <= newest.nbytes:
        return [*segments, newest, *rest]
    later = [row for row in segments if row.last_sequence > newest.sequence]
    return [newest, *later, *(row for row in segments if row not in later), *rest]


def _is_of(item: ShippedItem, local: CheckpointRow | None) -> bool:
    """Return True if the store's checkpoint belongs to this journal, and not to another history with the same names."""
    return local is None or (isinstance(item.row, CheckpointRow) and item.row.chain == local.chain)


def _is_wanted(row: SegmentRow, limits: Limits, horizon: int) -> bool:
    limit = limits.get(row.timeline, -1)
    return row.last_sequence > horizon and (limit is None or row.base_sequence < limit)


def find_chain(
    start: CheckpointRow, segments: Sequence[ShippedItem], timelines: Sequence[TimelineRow], limits: Limits
) -> list[ShippedItem]:
    """Return the segments that follow a checkpoint, in the order of the log, along the chain that leads furthest.

    Each segment is linked to the previous one by the digest that its first record names. Sequence numbers are not unique: after
    a crash, the log continues from its newest boundary, and records after that boundary keep their numbers in the old segment.
    """
    ours = [item for item in segments if limits.get(_row(item).timeline, -1) != -1]
    parents = {row.number: (row.parent, row.fork_sequence) for row in timelines if row.number in limits and row.parent}
    forks = [item for item in ours if parents.get(_row(item).timeline, (0, -1))[1] == _row(item).base_sequence]
    ends: dict[tuple[int, str], list[ShippedItem]] = {}
    for item in ours:
        ends.setdefault((_row(item).base_sequence, item.base_chain), []).append(item)
    best: dict[str, tuple[int, ShippedItem | None]] = {}
    for item in sorted(ours, key=lambda item: (_row(item).base_sequence, _row(item).ordinal), reverse=True):
        best[item.name] = _find_furthest(item, ends, forks, parents, limits, best)
    firsts = sorted((item for item in ours if _contains_start(item, start)), key=lambda item: -_row(item).base_sequence)
    chosen: ShippedItem | None = max(firsts, key=lambda item: best[item.name][0], default=None)
    found = []
    while chosen is not None:
        found.append(chosen)
        chosen = best[chosen.name][1]
    return found


def _row(item: ShippedItem) -> SegmentRow:
    assert isinstance(item.row, SegmentRow)
    return item.row


def _contains_start(item: ShippedItem, start: CheckpointRow) -> bool:
    """Return True if a checkpoint lies in a segment, or just before it."""
    if _row(item).base_sequence == start.sequence:
        return item.base_chain == start.chain
    is_same = _row(item).timeline == start.timeline
    return is_same and _row(item).base_sequence < start.sequence <= item.boundary_sequence


def _find_furthest(
    item: ShippedItem,
    ends: dict[tuple[int, str], list[ShippedItem]],
    forks: Sequence[ShippedItem],
    parents: dict[int, tuple[int, int]],
    limits: Limits,
    best: dict[str, tuple[int, ShippedItem | None]],
) -> tuple[int, ShippedItem | None]:
    """Return the sequence number that the log reaches through a segment, and the next segment on that path."""
    row = _row(item)
    limit = limits[row.timeline]
    follows = [
        *ends.get((item.end_sequence, item.end_chain), []),
        *ends.get((item.boundary_sequence, item.boundary_chain), []),
    ]
    own = item.boundary_sequence
    if limit is not None:  # the timeline was left for another one, at a boundary
        own = min(own, limit)
        follows = [other for other in follows if _row(other).timeline != row.timeline or _row(other).base_sequence < limit]
        follows += [
            other
            for other in forks
            if parents[_row(other).timeline][0] == row.timeline
            and row.base_sequence < _row(other).base_sequence <= item.boundary_sequence
        ]
    found: tuple[int, ShippedItem | None] = own, None
    for other in follows:
        furthest = best.get(other.name, (0, None))[0]
        if other is not item and furthest > found[0]:
            found = furthest, other
    return found


def find_recoverable_step(
    checkpoints: Sequence[CheckpointRow], segments: Sequence[ShippedItem], timelines: Sequence[TimelineRow], limits: Limits
) -> int:
    """Return the newest step that recovery from these items reaches; 0 if there is no checkpoint."""
    ours = [row for row in checkpoints if is_on_lineage(row, limits)]
    if not ours:
        return 0
    start = max(ours, key=lambda row: row.sequence)
    step = start.step
    for item in find_chain(start, segments, timelines, limits):
        limit = limits.get(_row(item).timeline)
        if limit is None or item.boundary_sequence <= limit:
            step = max(step, item.boundary_step)
        else:  # a timeline was left within this segment, at a boundary
            step = max(
                step, *(row.fork_step for row in timelines if row.parent == _row(item).timeline and row.number in limits)
            )
    return step


def find_stored_step(manifest: Manifest, contents: JournalContents) -> int:
    """Return the newest step that recovery reaches from the items of a manifest that are not lost."""
    available = [item for item in manifest.shipped.values() if not item.is_lost]
    segments = [item for item in available if isinstance(item.row, SegmentRow)]
    checkpoints = [item.row for item in available if isinstance(item.row, CheckpointRow)]
    return find_recoverable_step(checkpoints, segments, contents.timelines, contents.limits)


def plan_expiry(
    shipped: Mapping[str, ShippedItem], keep: RetentionPolicy, timelines: Sequence[TimelineRow], common: CommonRow | None = None
) -> list[str]:
    """Return the names of the items that the store need not keep.

    These are the checkpoints that the policy drops, and the log before the oldest kept one. Only durable checkpoints count as
    kept. An item that is not durable stays, unless the store has lost it and it would expire otherwise. The newest checkpoint
    up to the step that all journals have (`common`) stays, because ranks recover together.
    """
    durable = [item.row for item in shipped.values() if item.is_durable]
    checkpoints = [row for row in durable if isinstance(row, CheckpointRow)]
    lost = [item.row for item in shipped.values() if item.is_lost]
    segments = [row for row in (*durable, *lost) if isinstance(row, SegmentRow)]
    expired = plan_retirement(keep, checkpoints, segments, timelines, common)
    kept = [row.sequence for row in checkpoints if row not in expired.checkpoints]
    useless = [row for row in lost if isinstance(row, CheckpointRow) and kept and row.sequence < min(kept)]
    return [row.name for row in (*expired.checkpoints, *useless)] + [row.file for row in expired.segments]
