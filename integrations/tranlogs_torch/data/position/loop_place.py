"""The place of a run in the loop that runs, as reports name it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tranlogs.training import LoopRecord


def find_place(loop: LoopRecord, data: Mapping[str, Any], turns: int) -> tuple[int, int]:
    """Return the number of batches, or turns, of the loop that are done, and the epoch in it, from 0.

    Where no loop of `LoggedOptimizer` runs, these are numbers of the run.

    Args:
        loop: that runs.
        data: positions by loader.
        turns: number of turns of the run.
    """
    if not loop.is_open:
        position = next(iter(data.values()), {"taken": turns, "epoch": 0})
        return position["taken"], position["epoch"]
    position = data.get(loop.source)
    if position is None:
        return turns - loop.start.get("turn", 0), 0
    return position["taken"] - loop.start["taken"], position["epoch"] - loop.start["epoch"]
