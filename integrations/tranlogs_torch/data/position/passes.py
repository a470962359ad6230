"""The passes that a script's own `for batch in loader:` has made over a tracked loader (loops/user_loops)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tranlogs.training import LoopRecord

from ..resized_position import Rest
from ..sampler import Draws

IDLE = 0  # a pass that took no steps
LED = 1  # a pass whose batches were the boundaries
COMPANION = 2  # a pass that another loop asked for batches

END = object()  # in place of a batch: the iteration has no more


class PassHistory:
    """Passes over one loader, in the order in which the script made them.

    Attributes:
        finished: kind of each finished pass, companions left out.
        kind: kind of the running pass; None if the running loop is one of `LoggedOptimizer`.
        leads: True if the batches of the running pass are the boundaries.
        was_companion: True if the previous pass was a companion.
    """

    def __init__(self) -> None:
        self.finished = bytearray()
        self.kind: int | None = None
        self.leads = self.was_companion = False
        self._repeated = 0

    def begin(self, kind: int | None, *, leads: bool = False) -> None:
        """Begin a pass of this kind; None for a loop of `LoggedOptimizer`, or for no loop."""
        self.kind, self.leads = kind, leads

    def next_finished(self) -> int | None:
        """Return the kind of the next finished pass, for a script that runs from its start again; None after the last."""
        if self._repeated == len(self.finished):
            return None
        self._repeated += 1
        return self.finished[self._repeated - 1]


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
