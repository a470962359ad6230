"""Search for journals in places where no process of their rank reads them, because folders or nodes were swapped."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...base.errors import TranLogsError
from .journal_access import read_run_row
from .summary.log_summary import list_journals, read_generations, summarize_generations


def find_misnamed(journals: Iterable[tuple[int, Path]]) -> list[list[Any]]:
    """Return the journals that lie under the name of another rank: the folder's name, and the rank that wrote the journal."""
    rows = ((rank, folder, read_run_row(folder)) for rank, folder in journals)
    return [[folder.name, row.rank] for rank, folder, row in rows if row is not None and row.rank != rank]


def describe_misnamed(found: Iterable[list[Any]]) -> str:
    """Return a sentence about the result of `find_misnamed` on all ranks; "" if there are no such journals."""
    pairs = sorted({(name, rank) for name, rank in found})
    if not pairs:
        return ""
    swapped = ", ".join(f"{name} is the journal of rank {rank}" for name, rank in pairs)
    return (
        f"journals lie under the names of other ranks: {swapped}. Each journal holds state that only its rank has (random "
        "numbers, buffers, shards): rename the folders back, and start again"
    )


def find_misplaced(folder: Path, wanted: Collection[int]) -> list[list[Any]]:
    """Return journals beside this one whose rank is `wanted`, because its process has none.

    Returns:
        Of each journal that holds steps: the rank, the place and the last step.
    """
    found = []
    for rank, path in list_journals(folder):
        if rank in wanted and any((path / "checkpoints").glob("step-*")):
            with suppress(TranLogsError, OSError):
                summaries = summarize_generations(read_generations(path), rank, path, "")
                last = max(summary.last_step for summary in summaries)
                found += [[rank, f"{socket.gethostname()}:{path}", last]] if last else []
    return found


def describe_misplaced(found: Iterable[tuple[int, list[Any]]]) -> str:
    """Return a sentence about the results of `find_misplaced`, each with the rank that found it; "" if there are none."""
    places = "; ".join(
        f"that of rank {rank}, up to step {last}, is in {place}, where rank {finder} runs"
        for finder, (rank, place, last) in found
    )
    if not places:
        return ""
    return (
        f"journals lie where another rank runs, and the folders of their own ranks are empty: {places}. No new run was "
        "started. Start each rank where its journal is, or move the folders to their ranks; remove journals that are out of "
        "date"
    )
