"""Derived checkpoints: made by a monitor from checkpoint and log, and published if the run still has a place for them.

A shadow is written under a name of its own, whole and synced, by a process that may die at any time. Publishing is short: one
transaction of the catalog, in which it is asked whether the place still belongs to the run's history, the folder is renamed,
and the row is put. Whoever dies in between leaves a folder that is complete, and that the next trainer finds and lists.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from ..base.atomic_files import sync_folder
from ..base.errors import CorruptCheckpoint
from ..base.failpoints import hit
from ..catalog import Catalog, CheckpointRow, RunRow, SegmentRow, Tables, TimelineRow, segment_key
from ..catalog.lineage import Limits, is_on_lineage, trace_lineage
from .folder import DERIVED_PREFIX
from .reader import Checkpoint


@dataclass(frozen=True, slots=True)
class DerivedCheckpoint:
    """A shadow that is complete on disk.

    Attributes:
        row: that it will have.
        ordinal: of the sealed segment whose last boundary it is of ...
        segment_id: ... and what is in that segment's row.
        run_id: of the run.
    """

    row: CheckpointRow
    ordinal: int
    segment_id: str
    run_id: str


def derived_folder(checkpoints: Path, name: str) -> Path:
    """Where the shadow of the checkpoint `name` is written."""
    return checkpoints / (DERIVED_PREFIX + name)


def delete_derived(checkpoints: Path) -> None:
    """Delete what was not published."""
    for left in checkpoints.glob(DERIVED_PREFIX + "*"):
        shutil.rmtree(left, ignore_errors=True)


def publish(catalog: Catalog, checkpoints: Path, shadow: DerivedCheckpoint) -> str:
    """Make a shadow a checkpoint like any other, or delete it; gives why it was not published, "" if it was.

    Raises:
        LogUnavailable: the disk is full or fails. It can be tried again.
    """
    name = shadow.row.name
    source, target = derived_folder(checkpoints, name), checkpoints / name
    why = "" if _is_whole(source, shadow.row) else "its folder is incomplete"
    if not why:
        with catalog.transaction() as tables:
            why = _obstacle(tables, shadow)
            if not why and target.exists() and not _is_whole(target, shadow.row):
                why = "another checkpoint has its name"
            if not why:
                hit("shadow.publish")
                if not target.exists():  # else it was renamed by one that died before the row was there
                    os.rename(source, target)
                hit("shadow.renamed")
                sync_folder(checkpoints)
                tables.put(f"checkpoint/{name}", shadow.row)
                _withdraw_request(tables, shadow.row.step)
    shutil.rmtree(source, ignore_errors=True)
    return why


def _is_whole(folder: Path, row: CheckpointRow) -> bool:
    try:
        with Checkpoint(folder) as found:
            return (found.sequence, found.chain, found.timeline) == (row.sequence, int(row.chain, 16), row.timeline)
    except CorruptCheckpoint:
        return False


def _obstacle(tables: Tables, shadow: DerivedCheckpoint) -> str:
    """Why the catalog, as it is now, has no place for it."""
    row, run = shadow.row, tables.get("run", RunRow)
    if run is None or run.run_id != shadow.run_id:
        return "another run is there"
    timelines, checkpoints = tables.rows("timeline/", TimelineRow), tables.rows("checkpoint/", CheckpointRow)
    limits = trace_lineage(timelines, max((line.number for line in timelines), default=1))
    if not is_on_lineage(row, limits):
        return "the run was wound back to before it"
    published = (other for other in checkpoints if other.state == "published" and is_on_lineage(other, limits))
    if any(other.sequence >= row.sequence for other in published):
        return "there is a newer one"
    held = tables.get(segment_key(shadow.ordinal), SegmentRow)
    if held is None or (held.segment_id, held.state) != (shadow.segment_id, "sealed") or held.last_sequence < row.sequence:
        return "the log that it was made from is not there any more"
    if any(_supersedes(other, shadow, limits) for other in tables.rows("segment/", SegmentRow)):
        return "the log went on from before it"
    return ""


def _supersedes(other: SegmentRow, shadow: DerivedCheckpoint, limits: Limits) -> bool:
    """Whether a later segment of the same history begins before the shadow's place."""
    is_later = other.ordinal > shadow.ordinal and other.state in ("open", "sealed") and other.timeline in limits
    return is_later and other.base_sequence < shadow.row.sequence


def _withdraw_request(tables: Tables, step: int) -> None:
    """The trainer need not take the checkpoint that it was asked for."""
    asked = tables.request("checkpoint")
    if asked is not None and asked.get("step", 0) <= step:
        tables.delete("request/checkpoint")
