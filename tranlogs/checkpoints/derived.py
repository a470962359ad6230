"""Derived checkpoints: a monitor makes them from a checkpoint and the log, and publishes them if the run's history allows it.

A derived checkpoint is first written and synced under a temporary name, by a process that may die at any time. It is then
published in one transaction of the catalog: its position is checked against the run's history, the folder is renamed, and the
row is put. A process that dies during the transaction leaves a complete folder, which the next trainer finds and lists.
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
    """A derived checkpoint that is complete on disk, but not published.

    Attributes:
        row: its row in the catalog once it is published.
        ordinal: the ordinal of the sealed segment whose last boundary the checkpoint belongs to.
        segment_id: the id of that segment.
        run_id: the id of the run.
    """

    row: CheckpointRow
    ordinal: int
    segment_id: str
    run_id: str


def derived_folder(checkpoints: Path, name: str) -> Path:
    """Return the folder in which the derived checkpoint `name` is written before it is published."""
    return checkpoints / (DERIVED_PREFIX + name)


def delete_derived(checkpoints: Path) -> None:
    """Delete the folders of derived checkpoints that were not published."""
    for folder in checkpoints.glob(DERIVED_PREFIX + "*"):
        shutil.rmtree(folder, ignore_errors=True)


def publish(catalog: Catalog, checkpoints: Path, derived: DerivedCheckpoint) -> str:
    """Publish a derived checkpoint, or delete its folder.

    Returns:
        Why it was not published; "" if it was.

    Raises:
        LogUnavailable: the disk is full or fails. The call can be repeated.
    """
    name = derived.row.name
    source, target = derived_folder(checkpoints, name), checkpoints / name
    why = "" if _is_whole(source, derived.row) else "its folder is incomplete"
    if not why:
        with catalog.transaction() as tables:
            why = _find_obstacle(tables, derived)
            if not why and target.exists() and not _is_whole(target, derived.row):
                why = "another checkpoint has its name"
            if not why:
                hit("derived.publish")
                if not target.exists():  # A process may have renamed the folder and died before it put the row.
                    os.rename(source, target)
                hit("derived.renamed")
                sync_folder(checkpoints)
                tables.put(f"checkpoint/{name}", derived.row)
                _withdraw_request(tables, derived.row.step)
    shutil.rmtree(source, ignore_errors=True)
    return why


def _is_whole(folder: Path, row: CheckpointRow) -> bool:
    try:
        with Checkpoint(folder) as found:
            return (found.sequence, found.chain, found.timeline) == (row.sequence, int(row.chain, 16), row.timeline)
    except CorruptCheckpoint:
        return False


def _find_obstacle(tables: Tables, derived: DerivedCheckpoint) -> str:
    """Return why the run's history has no place for a derived checkpoint any more; "" if it has one."""
    row, run = derived.row, tables.get("run", RunRow)
    if run is None or run.run_id != derived.run_id:
        return "the folder holds another run now"
    timelines, checkpoints = tables.rows("timeline/", TimelineRow), tables.rows("checkpoint/", CheckpointRow)
    limits = trace_lineage(timelines, max((line.number for line in timelines), default=1))
    if not is_on_lineage(row, limits):
        return "the run was rewound to an earlier step"
    published = (other for other in checkpoints if other.state == "published" and is_on_lineage(other, limits))
    if any(other.sequence >= row.sequence for other in published):
        return "there is a newer checkpoint"
    segment = tables.get(segment_key(derived.ordinal), SegmentRow)
    if (
        segment is None
        or (segment.segment_id, segment.state) != (derived.segment_id, "sealed")
        or segment.last_sequence < row.sequence
    ):
        return "the log that it was made from does not exist any more"
    if any(_supersedes(other, derived, limits) for other in tables.rows("segment/", SegmentRow)):
        return "the log continues from an earlier step"
    return ""


def _supersedes(other: SegmentRow, derived: DerivedCheckpoint, limits: Limits) -> bool:
    """Return True if a later segment of the same history begins before the position of a derived checkpoint."""
    is_later = other.ordinal > derived.ordinal and other.state in ("open", "sealed") and other.timeline in limits
    return is_later and other.base_sequence < derived.row.sequence


def _withdraw_request(tables: Tables, step: int) -> None:
    """Delete a request for a checkpoint that is not newer than `step`, so that the trainer does not take one."""
    request = tables.request("checkpoint")
    if request is not None and request.get("step", 0) <= step:
        tables.delete("request/checkpoint")
