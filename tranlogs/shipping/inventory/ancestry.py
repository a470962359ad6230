"""Of what a store holds of a run, what is a journal's own past: a folder that was brought back from a backup, or a machine that
another one has overtaken, has another future than what lies there.

Names say nothing: a segment that was prepared ahead is filled by both futures, and a checkpoint of the same step has the same
name in both. So content is compared: by its digests with what this journal's catalog says was sent, or by the chain of the log
with what lies here. The one holds for what was pruned here since, the other where the catalog does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...catalog import CheckpointRow, SegmentRow, ShippedRow
from ..sending.plan import Look
from ..sending.source import read_chain
from .manifest import Shipped


def own_past(shipped: Mapping[str, Shipped], look: Look, known: Mapping[str, ShippedRow], log: Path) -> dict[str, Shipped]:
    """Of what a manifest names, what belongs to this journal.

    Args:
        shipped: what it names.
        look: what the journal's catalog lists.
        known: what that says was sent, by name.
        log: the folder of the segments.

    Raises:
        CannotRead: a segment cannot be read for want of file handles, memory or rights.
    """
    rows: dict[str, SegmentRow | CheckpointRow] = {row.name: row for row in look.checkpoints}
    rows |= {row.file: row for row in look.segments if row.state in ("sealed", "open")}
    return {name: one for name, one in shipped.items() if _is_own(one, rows.get(name), known.get(name), log)}


def _is_own(one: Shipped, mine: SegmentRow | CheckpointRow | None, sent: ShippedRow | None, log: Path) -> bool:
    theirs = one.row
    if isinstance(mine, CheckpointRow):
        return isinstance(theirs, CheckpointRow) and (mine.sequence, mine.chain) == (theirs.sequence, theirs.chain)
    if isinstance(mine, SegmentRow) and not (isinstance(theirs, SegmentRow) and _has_extent(mine, theirs)):
        return False
    if sent is not None and _content(sent) == _content(one.objects):
        return True
    return isinstance(mine, SegmentRow) and _is_same_log(mine, one.objects, log)


def _has_extent(mine: SegmentRow, theirs: SegmentRow) -> bool:
    is_sealed = mine.state == "sealed"  # of what is open the catalog does not know how far it goes
    return mine.segment_id == theirs.segment_id and (not is_sealed or mine.last_sequence == theirs.last_sequence)


def _content(objects: ShippedRow) -> dict[str, list[list[object]]]:
    return {file: [list(part[1:]) for part in parts] for file, parts in objects.files.items()}


def _is_same_log(mine: SegmentRow, objects: ShippedRow, log: Path) -> bool:
    """Whether a segment here has the entry in which the store's ends: its digest stands for all before it. Where a sealed one
    is damaged there, nothing else is known: it is taken for the same."""
    try:
        chain = read_chain(log / mine.file, mine, objects.end_sequence)
    except OSError:
        chain = None
    return chain == objects.end_chain or (chain is None and mine.state == "sealed")
