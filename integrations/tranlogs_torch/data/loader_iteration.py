"""One iteration over a DataLoader, the place in the data that a report names, and the position for another number of processes.

When another number of processes goes on, the rest of the epoch is divided anew. A DistributedSampler deals out one order of
the epoch, which depends on its seed and the epoch alone: after k batches of b samples on each of W processes the first k·b·W
of it are consumed. The W' new processes divide the remaining samples, so that each sample of the epoch comes once. How
another sampler divides an epoch is not known: the epoch goes on at the same part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from tranlogs.training import LoopRecord

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


Rest = tuple[int, int]  # batches of the epoch on this process when it was divided anew; samples consumed by all until then


def division_of(sampler: Any) -> dict[str, Any] | None:
    """Return the seed, shuffling and number of replicas of a DistributedSampler; None for any other sampler.

    Args:
        sampler: a loader's batch sampler, or its sampler where it makes no batches.
    """
    own = sampler.sampler if type(sampler) is BatchSampler else sampler
    if type(own) is not DistributedSampler:
        return None
    return {"replicas": own.num_replicas, "seed": own.seed, "shuffle": own.shuffle}


def redivided(state: dict[str, Any], loader: DataLoader[Any], sampler: Any, world: int) -> tuple[dict[str, Any], str]:
    """Convert a recorded position of another number of processes to this number; return it with a note on what was done.

    Args:
        state: of the position.
        loader: to go on with.
        sampler: its own one, below any proxy.
        world: number of processes now.
    """
    if not state["batch"]:
        return state, ""
    consumed = _consumed(state, loader, division_of(sampler))
    if consumed is None:
        return _at_same_part(state, sampler, world)
    replicas = division_of(sampler)["replicas"]  # type: ignore[index]
    at = max(1, consumed // ((loader.batch_size or 1) * replicas))
    index = {**state["index"], "drawn": 0, "seen": 0, "ahead": [], "order": 0}
    left = max(0, state["sizes"]["samples"] - consumed)
    note = (
        f"the data: the {left} samples of the epoch that {_processes(state['world'])} had not consumed are divided among "
        f"{world}, so each sample is used once"
    )
    return {**state, "batch": at, "index": index, "rest": (at, consumed)}, note


def _consumed(state: dict[str, Any], loader: DataLoader[Any], now: dict[str, Any] | None) -> int | None:
    """Return how many samples of the epoch all processes had consumed; None if another order is drawn now."""
    was = state["division"]
    if was is None or now is None or (was["seed"], was["shuffle"]) != (now["seed"], now["shuffle"]) or state["index"] is None:
        return None
    if state["sizes"]["samples"] != len(loader.dataset):  # type: ignore[arg-type]
        return None
    start, consumed = state["rest"] or (0, 0)
    return int(consumed + (state["batch"] - start) * (state["sizes"]["batch_size"] or 1) * was["replicas"])


def _at_same_part(state: dict[str, Any], sampler: Any, world: int) -> tuple[dict[str, Any], str]:
    before, index = state["world"], state["index"]
    at = max(1, state["batch"] * before // world)
    if index is not None:
        index = {**index, "drawn": at, "seen": at, "ahead": None}
    kind = type(getattr(sampler, "sampler", sampler)).__name__
    note = (
        f"the data: what {kind} draws may depend on the number of processes. The epoch continues at batch {at}, as far into "
        f"it as {_processes(before)} had come; some of its samples may be used twice or not at all"
    )
    return {**state, "batch": at, "index": index, "rest": None, "is_redrawn": True}, note


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def rest_of(sampler: Any, rest: Rest) -> Iterable[Any]:
    """Return this process's part of the samples of the epoch that were not consumed, as the sampler would batch it."""
    own: Any = sampler.sampler if isinstance(sampler, BatchSampler) else sampler
    whole: DistributedSampler[Any] = DistributedSampler(own.dataset, 1, 0, own.shuffle, own.seed)
    whole.set_epoch(own.epoch)
    left = list(whole)[rest[1] :]
    if left and not own.drop_last:
        missing = -len(left) % own.num_replicas
        left += (left * (missing // len(left) + 1))[:missing]
    left = left[: len(left) // own.num_replicas * own.num_replicas]
    mine = left[own.rank :: own.num_replicas]
    return BatchSampler(mine, sampler.batch_size, sampler.drop_last) if isinstance(sampler, BatchSampler) else mine
