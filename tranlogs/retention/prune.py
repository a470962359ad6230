"""Pruning: which segments and checkpoints are deleted (pure, over the catalog's rows), and how they are.

They are retired in the catalog in one transaction, and their bytes are deleted after it.

**By the policy, after a checkpoint.** A segment is retired when all its records precede the oldest kept checkpoint: no recovery
that starts at a kept checkpoint reads it. The newest checkpoint is always kept, and so is all that recovery to the newest step
needs. In a group of ranks, the newest checkpoint that is no newer than what every rank has is kept, too. If a rank dies before
its newest checkpoint is published, all ranks go back to one that each of them has. After a rewind, checkpoints that are not on
the newest lineage serve no recovery: a policy sees them as the oldest.

**To a budget, by the monitor.** Protected data are what recovery to the newest step needs: the *anchor* (the newest checkpoint
that was read back and found sound), all of the log after it, and segments that are not sealed. Protected data are never pruned.
Of the other data, those that exceed a limit on age or number are always pruned. Above the high watermark of the budget,
segments are pruned in ascending order of value, then older checkpoints, oldest first, until usage is below the low watermark.
If that is not enough, a new checkpoint is requested from the trainer, which makes more of the log prunable.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..base.atomic_files import sync_folder
from ..base.errors import UsageError
from ..base.failpoints import hit
from ..catalog import Catalog, Change, CheckpointRow, CommonRow, PrunedRow, SegmentRow, Tables, TimelineRow, segment_key
from ..catalog.rows import Limits, is_on_lineage, trace_lineage
from .keep_policy import RetentionPolicy

Make = Callable[[Change], bool]  # makes a change of the catalog: `Catalog.make`, or a request to the owner


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
    """Segments and checkpoints to prune, with the reason for each by the name of its file or folder.

    The bytes are those of the journal on disk, before and after. `wants_checkpoint` is True if protected data alone exceed the
    budget.
    """

    segments: tuple[SegmentRow, ...] = ()
    checkpoints: tuple[CheckpointRow, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    bytes_before: int = 0
    bytes_after: int = 0
    wants_checkpoint: bool = False


def bytes_on_disk(segments: Sequence[SegmentRow], checkpoints: Sequence[CheckpointRow]) -> int:
    """Return the bytes that a journal takes. Segment files count with the size that they grow to."""
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


def plan_retirement(
    policy: RetentionPolicy,
    checkpoints: Sequence[CheckpointRow],
    segments: Sequence[SegmentRow],
    timelines: Sequence[TimelineRow] = (),
    common: CommonRow | None = None,
) -> Pruning:
    """Decide which of the published checkpoints, and of all segments, to retire, because a policy does not keep them (pure).

    `common` is the step up to which every rank of the group has checkpoints; None for a single rank.

    Raises:
        TypeError: the policy returned None.
    """
    limits = trace_newest_lineage(checkpoints, timelines)
    oldest_first = sorted(checkpoints, key=lambda row: (is_on_lineage(row, limits), row.sequence, row.timeline))
    if not oldest_first:
        return Pruning()
    chosen: Collection[int] | None = policy.kept([row.step for row in oldest_first])
    if chosen is None:
        raise TypeError("the retention policy's kept() must return steps, got None; is a `return` missing?")
    wanted = Counter(chosen)
    needed = [oldest_first[-1].step]
    if common is not None:
        shared = [row.step for row in oldest_first if row.step <= common.step]
        if not shared:
            return Pruning()
        needed += shared[-1:]
    for step in needed:
        wanted[step] += not wanted[step]
    kept = []
    for row in reversed(oldest_first):  # of two with the same step, the one on the newest lineage is kept
        if wanted[row.step]:
            wanted[row.step] -= 1
            kept.append(row)
    horizon = min(row.sequence for row in kept)
    retired = tuple(row for row in oldest_first if row not in kept)
    covered = tuple(row for row in segments if row.state == "sealed" and row.last_sequence <= horizon)
    return Pruning(covered, retired)


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
    """Decide which of the published checkpoints, and of all segments, to prune to a budget (pure).

    Retired segments are among the segments, because their files still exist. A segment without a value counts as worth most.
    The anchor is the newest sound checkpoint on the newest lineage; without one (None), nothing is pruned. `now` is in seconds
    since 1970.
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


def retire(catalog: Catalog, folder: Path, policy: RetentionPolicy) -> Pruning:
    """Apply a policy to a journal. Files of retired segments are kept: the log recycles them.

    The policy, which may be the user's own and may count its calls, is called once, outside of the transaction. A row that
    another process has changed or deleted since it was read is left alone.
    """

    def read(tables: Tables) -> tuple[list[CheckpointRow], list[SegmentRow], list[TimelineRow], CommonRow | None]:
        segments, timelines = tables.rows("segment/", SegmentRow), tables.rows("timeline/", TimelineRow)
        return tables.published_checkpoints(), segments, timelines, tables.get("common", CommonRow)

    plan = plan_retirement(policy, *catalog.read(read))
    change = _retire_rows(plan)
    if change:
        with catalog.transaction() as tables:  # commit point: later plans do not use them
            for key, row in change.expects.items():
                if tables.get(key, type(row)) == row:
                    tables.put(key, change.puts[key])
    delete_retired(catalog, folder, catalog.make)
    return plan


def _retire_rows(plan: Pruning) -> Change:
    """Return the change that retires what a plan names, if the rows are still as they were read."""
    if plan.checkpoints or plan.segments:
        hit("log.retire")
    rows: dict[str, CheckpointRow | SegmentRow] = {f"checkpoint/{row.name}": row for row in plan.checkpoints}
    rows |= {segment_key(row.ordinal): row for row in plan.segments}
    return Change({key: replace(row, state="retired") for key, row in rows.items()}, expects=dict(rows))


Decide = Callable[[Sequence[SegmentRow], Sequence[CheckpointRow], Sequence[TimelineRow]], Pruning]


def prune(tables: Tables, decide: Decide, is_held: Callable[[Tables], bool] = lambda tables: False) -> tuple[Pruning, Change]:
    """Decide what to prune on a snapshot, and return the change that retires it.

    The change stands on the rows of what is kept, too: it is refused if the trainer has rewound, taken a checkpoint away, or
    pruned meanwhile. If protected data alone exceed the budget, it requests a checkpoint from the trainer. Nothing is pruned
    while `is_held`: a trainer that has recovered, and has not started to write, still needs the data.
    """
    if is_held(tables):
        return Pruning(), Change()
    checkpoints = tables.published_checkpoints()
    segments, timelines = tables.rows("segment/", SegmentRow), tables.rows("timeline/", TimelineRow)
    plan = decide(segments, checkpoints, timelines)
    change = _retire_rows(plan)
    change.expects["request/hold"], change.timelines = tables.request("hold"), [row.number for row in timelines]
    if change:
        change.expects |= {f"checkpoint/{row.name}": row for row in checkpoints}
        before = tables.get("pruned", PrunedRow)
        change.expects["pruned"], before = before, before or PrunedRow()
        nbytes = sum(row.size for row in plan.segments) + sum(row.nbytes for row in plan.checkpoints)
        change.puts["pruned"] = PrunedRow(
            max([before.sequence, *(row.last_sequence for row in plan.segments)]),
            before.segments + len(plan.segments),
            before.checkpoints + len(plan.checkpoints),
            before.nbytes + nbytes,
        )
    newest = max((row.step for row in checkpoints), default=0)
    request = tables.request("checkpoint")
    if plan.wants_checkpoint and (request is None or request.get("step", 0) <= newest):
        wanted = {"step": newest + 1, "why": "protected data alone exceed the budget"}
        change.puts["request/checkpoint"] = wanted
    return plan, change


def delete_retired(catalog: Catalog, folder: Path, make: Make) -> None:
    """Delete all retired checkpoints, also those that an earlier attempt could not delete: first the bytes, then the rows."""
    deleted = Change()
    for row in catalog.read(lambda tables: tables.rows("checkpoint/", CheckpointRow)):
        if row.state != "retired":
            continue
        hit("checkpoint.delete")
        shutil.rmtree(folder / row.name, ignore_errors=True)
        if not (folder / row.name).exists():  # else the row is kept, and the next call tries again
            deleted.expects[f"checkpoint/{row.name}"] = row
            deleted.deletes.append(f"checkpoint/{row.name}")
    if deleted:
        sync_folder(folder)  # Otherwise a power cut could leave a part of the folder without a row.
        make(deleted)


def set_aside(catalog: Catalog, folder: Path, name: str) -> None:
    """Remove a damaged checkpoint from the catalog, so that it does not count as a kept one. Its bytes are kept."""
    with catalog.transaction() as tables:
        tables.delete(f"checkpoint/{name}")
    if (folder / name).exists():
        shutil.rmtree(folder / f"damaged-{name}", ignore_errors=True)
        (folder / name).rename(folder / f"damaged-{name}")
