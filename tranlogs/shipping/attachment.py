"""Checks before a journal writes to a store, and the selection of what the store holds of that journal's history.

Its place in the store must be empty, or hold an earlier state of the journal. Two machines can hold copies of one run, and a
store's address can point to another run or to an empty mount point. `--take-over` skips the checks that a person can decide
better.

A folder that was restored from a backup, or a machine that another machine replaced, may have continued differently than the
run in the store. Names do not show this: both continue to fill a segment that was prepared earlier, and checkpoints of one step
have the same name in both. The content is therefore compared: the digests in the store with those in the journal's copy of the
manifest, which also identify items that were pruned locally, or the chain of the local log with the chain in the store.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..base.errors import StoreRefused
from ..catalog import CheckpointRow, RunRow, SegmentRow, StoreRow
from .manifest import Manifest, ShippedItem, name_of, parse_manifest_name
from .plan import JournalContents
from .upload import read_chain


def check_place(
    where: str, found: Manifest | None, names: Sequence[str], row: StoreRow | None, run: RunRow, *, takes_over: bool
) -> None:
    """Check that a journal may write to its place in a store, `where`.

    `found` is the newest manifest that can be read of those that are there (`names`); `row` is the store's row in the journal's
    catalog.

    Raises:
        StoreRefused: writing could destroy data.
    """
    is_recoverable = found is not None and bool(found.checkpoints)
    if found is not None and is_recoverable and found.run.run_id != run.run_id:
        raise StoreRefused(
            where,
            f"expected run {run.run_id[:8]}, found another run ({found.run.run_id[:8]}); use another address",
        )
    if takes_over:
        return
    if row is not None and row.number and not names:
        raise StoreRefused(
            where,
            f"expected manifest {row.number} of this run, found nothing: check the address, and that its disk is mounted; to "
            "ship the run to this address from the start, use --take-over (a monitor: --set take_over=true)",
        )
    newest_known = max(found.number if found else 0, row.number if row else 0)
    newer = [
        number
        for number, writer in map(parse_manifest_name, names)
        if number > newest_known and (row is None or writer != row.writer)
    ]
    if newer:
        raise StoreRefused(
            where,
            f"the store holds manifest {max(newer)} of another copy of this run, which cannot be read (yet); to ship this "
            "copy nevertheless, use --take-over (a monitor: --set take_over=true)",
        )
    if found is not None and is_recoverable and not _is_continued(found, row):
        raise StoreRefused(
            where,
            f"another copy of this run, on host {found.host}, has shipped to this address since (manifest {found.number}). "
            "Stop that copy, or use another address; to continue from the state that it shipped, pull the run; to ship this "
            "copy nevertheless, use --take-over (a monitor: --set take_over=true)",
        )


def _is_continued(found: Manifest, row: StoreRow | None) -> bool:
    """Return True if this journal wrote the manifest, was pulled from it, or has lost its catalog on the host that wrote it."""
    if row is None:
        return found.host == socket.gethostname()
    return found.writer == row.writer or found.number <= row.number


def select_own_history(
    found: Manifest, contents: JournalContents, known: Mapping[str, ShippedItem], log: Path
) -> dict[str, ShippedItem]:
    """Return the items of a manifest that belong to the journal whose catalog lists `contents`, and its copy `known`.

    `log` is the folder of the segments.

    Raises:
        CannotRead: a segment cannot be read for want of file handles, memory or rights.
    """
    rows = {name_of(row): row for row in contents.segments if row.state == "open"} | contents.items
    return {name: item for name, item in found.shipped.items() if _is_own(item, rows.get(name), known.get(name), log)}


def _is_own(item: ShippedItem, local: SegmentRow | CheckpointRow | None, sent: ShippedItem | None, log: Path) -> bool:
    stored = item.row
    if isinstance(local, CheckpointRow):
        return isinstance(stored, CheckpointRow) and (local.sequence, local.chain) == (stored.sequence, stored.chain)
    if isinstance(local, SegmentRow) and not (isinstance(stored, SegmentRow) and _has_extent(local, stored)):
        return False
    if sent is not None and _content(sent) == _content(item):
        return True
    return isinstance(local, SegmentRow) and _is_same_log(local, item, log)


def _has_extent(local: SegmentRow, stored: SegmentRow) -> bool:
    is_sealed = local.state == "sealed"  # the catalog does not know where an open segment ends
    return local.segment_id == stored.segment_id and (not is_sealed or local.last_sequence == stored.last_sequence)


def _content(item: ShippedItem) -> dict[str, list[list[object]]]:
    return {file: [list(part[1:]) for part in parts] for file, parts in item.files.items()}


def _is_same_log(local: SegmentRow, item: ShippedItem, log: Path) -> bool:
    """Return True if the local segment contains the last record of the store's copy. Its digest covers all earlier records.

    A sealed segment that is damaged at that record is assumed to be the same.
    """
    try:
        chain = read_chain(log / local.file, local, item.end_sequence)
    except OSError:
        chain = None
    return chain == item.end_chain or (chain is None and local.state == "sealed")
