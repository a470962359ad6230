"""Selection of the items in a store that belong to a journal's history.

A folder that was restored from a backup, or a machine that another machine replaced, may have continued differently than the
run in the store. Names do not show this: both continue to fill a segment that was prepared earlier, and checkpoints of one step
have the same name in both. The content is therefore compared: the digests in the store with those in the journal's catalog, or
the chain of the local log with the chain in the store. The digests also identify items that were pruned locally. The chain is
used if the catalog has no digests.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...catalog import CheckpointRow, SegmentRow, ShippedRow
from ..items.item_files import read_chain
from ..items.shipping_plan import JournalContents
from ..manifest import ShippedItem


def select_own_history(
    shipped: Mapping[str, ShippedItem], contents: JournalContents, known: Mapping[str, ShippedRow], log: Path
) -> dict[str, ShippedItem]:
    """Return the items of a manifest that belong to this journal.

    Args:
        shipped: the items that the manifest names.
        contents: what the journal's catalog lists.
        known: items that were shipped, by the catalog, by name.
        log: the folder of the segments.

    Raises:
        CannotRead: a segment cannot be read for want of file handles, memory or rights.
    """
    rows: dict[str, SegmentRow | CheckpointRow] = {row.name: row for row in contents.checkpoints}
    rows |= {row.file: row for row in contents.segments if row.state in ("sealed", "open")}
    return {name: item for name, item in shipped.items() if _is_own(item, rows.get(name), known.get(name), log)}


def _is_own(item: ShippedItem, local: SegmentRow | CheckpointRow | None, sent: ShippedRow | None, log: Path) -> bool:
    stored = item.row
    if isinstance(local, CheckpointRow):
        return isinstance(stored, CheckpointRow) and (local.sequence, local.chain) == (stored.sequence, stored.chain)
    if isinstance(local, SegmentRow) and not (isinstance(stored, SegmentRow) and _has_extent(local, stored)):
        return False
    if sent is not None and _content(sent) == _content(item.objects):
        return True
    return isinstance(local, SegmentRow) and _is_same_log(local, item.objects, log)


def _has_extent(local: SegmentRow, stored: SegmentRow) -> bool:
    is_sealed = local.state == "sealed"  # the catalog does not know where an open segment ends
    return local.segment_id == stored.segment_id and (not is_sealed or local.last_sequence == stored.last_sequence)


def _content(objects: ShippedRow) -> dict[str, list[list[object]]]:
    return {file: [list(part[1:]) for part in parts] for file, parts in objects.files.items()}


def _is_same_log(local: SegmentRow, objects: ShippedRow, log: Path) -> bool:
    """Return True if the local segment contains the last entry of the store's copy. Its digest covers all earlier entries.

    A sealed segment that is damaged at that entry is assumed to be the same.
    """
    try:
        chain = read_chain(log / local.file, local, objects.end_sequence)
    except OSError:
        chain = None
    return chain == objects.end_chain or (chain is None and local.state == "sealed")
