"""Checks that a journal makes before it writes to a store: is the place empty, or does this journal continue what is there?

Two machines can hold copies of one run, and a store's address can point to another run or to an empty mount point. Each check
raises StoreRefused where writing would destroy something; `--take-over` skips those that a person can judge better.
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
        names: names of all manifests that are there.
        row: what the journal's catalog says of this store; None if it says nothing.

    Raises:
        StoreRefused: a newer manifest is there that cannot be read, or the manifests are gone.
    """
    newest_known = max(found.number if found else 0, row.number if row else 0)
    if row is not None and row.number and not names:
        raise StoreRefused(
            where,
            f"expected manifest {row.number} of this run, found nothing: check the address, and that its disk is mounted; to "
            "begin there anew, give --take-over",
        )
    newer = [
        number
        for number, writer in map(parse_manifest_name, names)
        if number > newest_known and (row is None or writer != row.writer)
    ]
    if newer:
        raise StoreRefused(
            where,
            f"manifest {max(newer)} of another copy of this run is there and cannot be read (yet); to ship this copy all the "
            "same, give --take-over",
        )


def check_same_run(where: str, found: Manifest, run: RunRow) -> None:
    """Check that the manifest in the store is of this run.

    Raises:
        StoreRefused: it is of another run.
    """
    if found.run.run_id != run.run_id:
        raise StoreRefused(
            where,
            f"expected run {run.run_id[:8]}, found another run there ({found.run.run_id[:8]}); give another address",
        )


def check_continues(where: str, found: Manifest, row: StoreRow | None) -> None:
    """Check that this journal continues what the store holds.

    That is so if this journal wrote the manifest, or was pulled from it, or has lost its catalog on the same host.

    Raises:
        StoreRefused: another copy of the run has shipped since.
    """
    if row is not None and (found.writer == row.writer or found.number <= row.number):
        return
    if row is not None or found.host != socket.gethostname():
        raise StoreRefused(
            where,
            f"another copy of this run, on host {found.host}, has shipped there since (manifest {found.number}). Stop that "
            "copy, or give another address; to continue from what it shipped, pull it; to ship this copy all the same, give "
            "--take-over",
        )
