"""The place of a run in the loop that runs, as reports name it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tranlogs.training import LoopRecord


def find_place(loop: LoopRecord, data: Mapping[str, Any], turns: int) -> tuple[int, int, int]:
    """Return the number of the loop, its epoch, from 0, and the number of its batches, or turns, that are done.

    Where no loop of `LoggedOptimizer` runs, the loop is number 1, and the others are numbers of the run. The epoch of a loop
    that has ended is its last one.

    Args:
        loop: that runs.
        data: positions by loader.
        turns: number of turns of the run.
    """
    if not loop.is_open:
        position = next(iter(data.values()), {"taken": turns, "epoch": 0, "batch": 0})
        epoch = loop.find_epoch(position["epoch"], position["batch"]) if loop.count else position["epoch"]
        return 1, epoch, position["taken"]
    position = data.get(loop.source)
    if position is None:
        return loop.count, 0, turns - loop.start.get("turn", 0)
    epoch = loop.find_epoch(position["epoch"] - loop.start["epoch"], position["batch"])
    return loop.count, epoch, position["taken"] - loop.start["taken"]
