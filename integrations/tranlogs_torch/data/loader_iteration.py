"""One iteration over a DataLoader, and the place in the data that a report names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tranlogs.training import LoopRecord

from .resized_position import Rest
from .sampler import Draws

END = object()  # in place of a batch: the iteration has no more


@dataclass(slots=True)
class LoaderIteration:
    """One iteration over a loader, from its first batch.

    Attributes:
        batch: number of batches that were handed to the loop.
        order: running hash of these batches, if the loader has no indices and a resume reads them again.
        opened: random state before `iter(loader)`.
        samplers: states of the samplers at that moment.
        rest: part of the epoch that was divided anew (resized_position.py); None if it was not.
        draws: index batches drawn so far; None before the first draw, and if the loader has no indices.
        live: the iterator; None before it is opened.
    """

    batch: int = 0
    order: int = 0
    opened: dict[str, Any] | None = None
    samplers: list[Any] = field(default_factory=list)
    rest: Rest | None = None
    draws: Draws | None = None
    live: Iterator[Any] | None = None

    def take_uncounted(self) -> Any:
        """Return the next batch, or END, of an iteration that is not the position's."""
        if self.draws is not None:
            self.draws.ahead.clear()  # only a position consumes what is drawn
        return END if self.live is None else next(self.live, END)


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
