"""Pruning: segments and checkpoints are retired in the catalog in one transaction, and their bytes are deleted after it.

A segment is retired when all its entries precede the oldest kept checkpoint: no recovery that starts at a kept checkpoint
reads it. The newest checkpoint is always kept, and so is all that recovery to the newest step needs.

In a group of ranks, the newest checkpoint that is no newer than what every rank has is kept, too. If a rank dies before its
newest checkpoint is published, all ranks go back to one that each of them has.

After a rewind, checkpoints that are not on the newest lineage serve no recovery: a policy sees them as the oldest.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from ..base.atomic_files import sync_folder
from ..base.failpoints import hit
from ..catalog import Catalog, Change, CheckpointRow, CommonRow, PrunedRow, SegmentRow, Tables, TimelineRow, segment_key
from ..catalog.lineage import is_on_lineage
from .keep_policy import RetentionPolicy
from .pruning_plan import Pruning, trace_newest_lineage

_TRIES_MAX = 3  # Rows that were read may be changed before they are retired, by a monitor that prunes them.

Make = Callable[[Change], bool]  # makes a change of the catalog: `Catalog.make`, or a request to the owner
Decide = Callable[[Sequence[SegmentRow], Sequence[CheckpointRow], Sequence[TimelineRow]], Pruning]


def plan_retirement(
    policy: RetentionPolicy,
    checkpoints: Sequence[CheckpointRow],
    segments: Sequence[SegmentRow],
    timelines: Sequence[TimelineRow] = (),
    common: CommonRow | None = None,
) -> Pruning:
    """Decide which checkpoints and segments to retire, because a policy does not keep them (pure).

    Args:
        policy: decides which checkpoints are kept.
        checkpoints: the published checkpoints.
        segments: all segments.
        timelines: all timelines.
        common: the step up to which every rank of the group has checkpoints; None for a single rank.

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


def retire(catalog: Catalog, folder: Path, policy: RetentionPolicy) -> Pruning:
    """Apply a policy to a journal. Files of retired segments are kept: the log recycles them.

    The policy, which may be the user's own, is called outside of the transaction. If another process has changed a row since it
    was read, the policy is asked again.
    """

    def read(tables: Tables) -> tuple[list[CheckpointRow], list[SegmentRow], list[TimelineRow], CommonRow | None]:
        published = [row for row in tables.rows("checkpoint/", CheckpointRow) if row.state == "published"]
        segments, timelines = tables.rows("segment/", SegmentRow), tables.rows("timeline/", TimelineRow)
        return published, segments, timelines, tables.get("common", CommonRow)

    for _ in range(_TRIES_MAX):
        plan = plan_retirement(policy, *catalog.read(read))
        change = _retire_rows(plan)
        if not change or catalog.make(change):  # commit point: later plans do not use them
            break
    else:
        plan = Pruning()
    delete_retired(catalog, folder, catalog.make)
    return plan


def _retire_rows(plan: Pruning) -> Change:
    """Return the change that retires what a plan names, if the rows are still as they were read."""
    if plan.checkpoints or plan.segments:
        hit("log.retire")
    rows: dict[str, CheckpointRow | SegmentRow] = {f"checkpoint/{row.name}": row for row in plan.checkpoints}
    rows |= {segment_key(row.ordinal): row for row in plan.segments}
    return Change({key: replace(row, state="retired") for key, row in rows.items()}, expects=dict(rows))


def prune(tables: Tables, decide: Decide, is_held: Callable[[Tables], bool] = lambda tables: False) -> tuple[Pruning, Change]:
    """Decide what to prune on a snapshot, and return the change that retires it.

    The change stands on the rows of what is kept, too: it is refused if the trainer has rewound, taken a checkpoint away, or
    pruned meanwhile. If protected data alone exceed the budget, it requests a checkpoint from the trainer.

    Args:
        tables: the snapshot.
        decide: the decision, given segments, published checkpoints and timelines.
        is_held: True while a trainer that has recovered, and has not started to write, still needs the data. Nothing is
            pruned then.
    """
    if is_held(tables):
        return Pruning(), Change()
    checkpoints = [row for row in tables.rows("checkpoint/", CheckpointRow) if row.state == "published"]
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
    """Delete all retired checkpoints, including those that an earlier attempt could not delete: first the bytes, then the rows.

    Args:
        catalog: the journal's.
        folder: of the checkpoints.
        make: makes the change of the catalog.
    """
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
