"""Whether journals lie where the processes of their ranks look for them: folders get swapped, and nodes change places."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...base.errors import TranLogsError
from .journal_access import run_row_of
from .journal_summary import holdings_of, journals_beside, read_eras


def misnamed(journals: Iterable[tuple[int, Path]]) -> list[list[Any]]:
    """Of those that lie under the name of another rank: the name, and the rank whose they are."""
    rows = ((rank, folder, run_row_of(folder)) for rank, folder in journals)
    return [[folder.name, row.rank] for rank, folder, row in rows if row is not None and row.rank != rank]


def told_of_names(found: Iterable[list[Any]]) -> str:
    """A sentence about what is `misnamed`; empty if nothing is."""
    swapped = ", ".join(f"{name} is that of rank {rank}" for name, rank in sorted({(name, rank) for name, rank in found}))
    return swapped and (f"journals lie under the names of other ranks: {swapped}. Each has what is its rank's own (random "
                        "numbers, buffers, shards): rename the folders back, and start again")  # fmt: skip


def strays(folder: Path, wanted: Collection[int]) -> list[list[Any]]:
    """Journals beside this one, of ranks whose processes have none: rank, place, and the last step of each that has steps."""
    found = []
    for rank, path in journals_beside(folder):
        if rank in wanted and any((path / "checkpoints").glob("step-*")):
            with suppress(TranLogsError, OSError):
                held = holdings_of(read_eras(path), rank, path, "")
                last = max((step for holding in held for step in holding.landings()), default=0)
                found += [[rank, f"{socket.gethostname()}:{path}", last]] if last else []
    return found


def told_of_strays(found: Iterable[tuple[int, list[Any]]]) -> str:
    """A sentence about `strays`, each with the rank that sees it; empty if there are none."""
    seen = "; ".join(
        f"that of rank {rank}, to step {last}, is {place}, where rank {seer} runs" for seer, (rank, place, last) in found
    )
    return seen and (f"journals lie where other ranks run than theirs, whose own folders are empty: {seen}. Nothing was begun "
                     "anew. Start each rank where its journal is, or move the folders there; what is out of date, take "
                     "away")  # fmt: skip
