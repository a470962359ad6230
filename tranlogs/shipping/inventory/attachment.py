"""Checks before a journal writes to a store: its place in the store must be empty, or hold an earlier state of the journal.

Two machines can hold copies of one run, and a store's address can point to another run or to an empty mount point. Each check
raises StoreRefused if writing could destroy data. `--take-over` skips the checks that a person can decide better.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from ...base.errors import StoreRefused
from ...catalog import RunRow, StoreRow
from ..manifest import Manifest, parse_manifest_name


def check_newest(where: str, found: Manifest | None, names: Sequence[str], row: StoreRow | None) -> None:
    """Check that the manifest that was read is the newest, and that the store has not been emptied.

    Args:
        where: the journal's place in the store, for messages.
        found: the newest manifest that could be read.
        names: names of all manifests in that place.
        row: the row of this store in the journal's catalog; None if there is none.

    Raises:
        StoreRefused: the store holds a newer manifest that cannot be read, or has lost the manifests.
    """
    newest_known = max(found.number if found else 0, row.number if row else 0)
    if row is not None and row.number and not names:
        raise StoreRefused(
            where,
            f"expected manifest {row.number} of this run, found nothing: check the address, and that its disk is mounted; to "
            "ship the run to this address from the start, use --take-over",
        )
    newer = [
        number
        for number, writer in map(parse_manifest_name, names)
        if number > newest_known and (row is None or writer != row.writer)
    ]
    if newer:
        raise StoreRefused(
            where,
            f"the store holds manifest {max(newer)} of another copy of this run, which cannot be read (yet); to ship this "
            "copy nevertheless, use --take-over",
        )


def check_same_run(where: str, found: Manifest, run: RunRow) -> None:
    """Check that the manifest in the store is of this run.

    Raises:
        StoreRefused: the manifest is of another run.
    """
    if found.run.run_id != run.run_id:
        raise StoreRefused(
            where,
            f"expected run {run.run_id[:8]}, found another run ({found.run.run_id[:8]}); use another address",
        )


def check_continues(where: str, found: Manifest, row: StoreRow | None) -> None:
    """Check that this journal continues what the store holds.

    It does if it wrote the manifest, or was pulled from it, or has lost its catalog on the host that wrote the manifest.

    Raises:
        StoreRefused: another copy of the run has shipped since.
    """
    if row is not None and (found.writer == row.writer or found.number <= row.number):
        return
    if row is not None or found.host != socket.gethostname():
        raise StoreRefused(
            where,
            f"another copy of this run, on host {found.host}, has shipped to this address since (manifest {found.number}). "
            "Stop that copy, or use another address; to continue from the state that it shipped, pull the run; to ship this "
            "copy nevertheless, use --take-over",
        )
