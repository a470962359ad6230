"""Apply a retention policy: retire in the catalog in one transaction, delete bytes after.

A segment goes when every entry of it lies behind the oldest checkpoint that is kept: no recovery that starts at a kept
checkpoint reads it. The newest checkpoint, and so all that recovery to the newest step needs, always stays.

Of a journal among several, so does the newest checkpoint that is no newer than what all ranks have: should one of them die
before it has the newest, all go back to where each can be.

After a rewind, checkpoints that are not on the way to the newest timeline help no recovery any more: a policy sees them
as the oldest.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..base.atomic_files import sync_folder
from ..base.failpoints import hit
from ..catalog import Catalog, CheckpointRow, CommonRow, PrunedRow, SegmentRow, Tables, TimelineRow, segment_key
from ..catalog.lineage import is_on_lineage
from .budget import Pruning, trace_newest_lineage
from .keep_policy import RetentionPolicy

Decide = Callable[[Sequence[SegmentRow], Sequence[CheckpointRow], Sequence[TimelineRow]], Pruning]


@dataclass(frozen=True, slots=True)
class Retirement:
    """What a policy gives up."""

    checkpoints: tuple[CheckpointRow, ...]
    segments: tuple[SegmentRow, ...]


def plan_retirement(policy: RetentionPolicy, checkpoints: Sequence[CheckpointRow], segments: Sequence[SegmentRow],
                    timelines: Sequence[TimelineRow] = (), common: CommonRow | None = None) -> Retirement:  # fmt: skip
    """Decide which checkpoints and segments go (pure)."""
    limits = trace_newest_lineage(checkpoints, timelines)
    oldest_first = sorted(checkpoints, key=lambda row: (is_on_lineage(row, limits), row.sequence, row.timeline))
    if not oldest_first:
        return Retirement((), ())
    chosen: Collection[int] | None = policy.kept([row.step for row in oldest_first])
    if chosen is None:  # a `return` was forgotten
        raise TypeError("the retention policy's kept() gave None instead of steps")
    wanted = Counter(chosen)
    needed = [oldest_first[-1].step]
    if common is not None:
        shared = [row.step for row in oldest_first if row.step <= common.step]
        if not shared:
            return Retirement((), ())
        needed += shared[-1:]
    for step in needed:
        wanted[step] += not wanted[step]
    kept = []
    for row in reversed(oldest_first):  # of two with the same step, the one that is not left behind
        if wanted[row.step]:
            wanted[row.step] -= 1
            kept.append(row)
    horizon = min(row.sequence for row in kept)
    gone = tuple(row for row in oldest_first if row not in kept)
    behind = tuple(row for row in segments if row.state == "sealed" and row.last_sequence <= horizon)
    return Retirement(gone, behind)


def retire(catalog: Catalog, folder: Path, policy: RetentionPolicy) -> Retirement:
    """Apply a policy to a journal. Retired segment files stay for the pipeline to recycle."""
    common = catalog.read(lambda tables: tables.get("common", CommonRow))
    plan = plan_retirement(policy, catalog.checkpoints(), catalog.segments(), catalog.timelines(), common)
    if plan.checkpoints or plan.segments:
        hit("log.retire")
        with catalog.transaction() as tables:  # commit point: from here on nobody plans with them
            for checkpoint in plan.checkpoints:
                tables.put(f"checkpoint/{checkpoint.name}", replace(checkpoint, state="retired"))
            for segment in plan.segments:
                tables.put(segment_key(segment.ordinal), replace(segment, state="retired"))
    delete_retired(catalog, folder)
    return plan


def prune(catalog: Catalog, decide: Decide, is_held: Callable[[Tables], bool] = lambda tables: False) -> Pruning:
    """Decide what goes and retire it, in one transaction: nothing that the decision is based on changes in between.

    Nothing goes while a trainer that has recovered, and not begun to write, holds it.

    If only protected data are left above the budget, the trainer is asked for a checkpoint in the same transaction.
    """
    with catalog.transaction() as tables:  # commit point: from here on nobody plans with what goes
        if is_held(tables):
            return Pruning()
        checkpoints = [row for row in tables.rows("checkpoint/", CheckpointRow) if row.state == "published"]
        plan = decide(tables.rows("segment/", SegmentRow), checkpoints, tables.rows("timeline/", TimelineRow))
        if plan.checkpoints or plan.segments:
            hit("log.retire")
        for checkpoint in plan.checkpoints:
            tables.put(f"checkpoint/{checkpoint.name}", replace(checkpoint, state="retired"))
        for segment in plan.segments:
            tables.put(segment_key(segment.ordinal), replace(segment, state="retired"))
        if plan.checkpoints or plan.segments:
            before = tables.get("pruned", PrunedRow) or PrunedRow()
            nbytes = sum(row.size for row in plan.segments) + sum(row.nbytes for row in plan.checkpoints)
            tables.put("pruned", PrunedRow(
                max([before.sequence, *(row.last_sequence for row in plan.segments)]), before.segments + len(plan.segments),
                before.checkpoints + len(plan.checkpoints), before.nbytes + nbytes))  # fmt: skip
        newest = max((row.step for row in checkpoints), default=0)
        asked = tables.request("checkpoint")
        if plan.wants_checkpoint and (asked is None or asked.get("step", 0) <= newest):
            tables.put_request("checkpoint", {"step": newest + 1, "why": "over budget, and only protected data are left"})
    return plan


def delete_retired(catalog: Catalog, folder: Path) -> None:
    """Delete the retired checkpoints, those included that an earlier attempt left."""
    for row in catalog.read(lambda tables: tables.rows("checkpoint/", CheckpointRow)):
        if row.state == "retired":
            delete_checkpoint(catalog, folder, row)


def delete_checkpoint(catalog: Catalog, folder: Path, row: CheckpointRow) -> None:
    """Delete a retired checkpoint's bytes, then its row."""
    hit("checkpoint.delete")
    shutil.rmtree(folder / row.name, ignore_errors=True)
    if (folder / row.name).exists():
        return  # tried again when the run is opened next
    sync_folder(folder)  # else a power cut could leave half of it without a row
    with catalog.transaction() as tables:
        tables.delete(f"checkpoint/{row.name}")


def set_aside(catalog: Catalog, folder: Path, name: str) -> None:
    """Take a damaged checkpoint out of the catalog, so that it does not count as one that is kept; its bytes stay."""
    with catalog.transaction() as tables:
        tables.delete(f"checkpoint/{name}")
    if (folder / name).exists():
        shutil.rmtree(folder / f"damaged-{name}", ignore_errors=True)
        (folder / name).rename(folder / f"damaged-{name}")
