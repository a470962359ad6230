"""The passes that are running, and which of them leads."""

from __future__ import annotations

import dis
import sys
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any, Protocol

from ...data.position.loader_position import LoaderPosition
from ...data.position.passes import COMPANION, END, LED
from .loop_run import LoopRun

COUNTS_BY_ITSELF = (
    "the loop takes its batches with next() and counts them itself, so after a resume it may take more batches than are "
    "left. Let it iterate over optimizer.batches(loader, until=N); for Ignite use tranlogs_torch.trainers.ignite.run_engine"
)


class FinishedPass:
    """An iteration over a loader that had ended before the crash: it gives no batch.

    Args:
        position: in the loader.
        is_leader: True if steps were taken between its batches.
    """

    def __init__(self, position: LoaderPosition, *, is_leader: bool) -> None:
        self._position, self._is_leader = position, is_leader

    def __iter__(self) -> FinishedPass:
        return self

    def __next__(self) -> Any:
        if self._is_leader and is_called_by_next(sys._getframe(1)):
            self._position.doubt(COUNTS_BY_ITSELF)
        raise StopIteration


def is_called_by_next(caller: FrameType) -> bool:
    """Return True if the code of a frame is calling a function now, such as `next`, and not iterating by `for`."""
    return dis.opname[caller.f_code.co_code[caller.f_lasti]].startswith(("CALL", "PRECALL"))


class PassOwner(Protocol):
    """The loops of a run, as a pass uses them."""

    def next_batch(self, p: LoaderPass) -> Any:
        """Return the next batch of a pass, or END."""
        ...

    def is_resumed(self, p: LoaderPass) -> bool:
        """Return True if the run stood in this pass, and its batches are boundaries."""
        ...

    def end(self, p: LoaderPass) -> None:
        """Note that a pass gave its last batch, or that no loop holds it any more."""
        ...


class LoaderPass:
    """One iteration over a tracked loader.

    Attributes:
        position: position in the loader.
        iteration: the iteration that the pass makes.
        number: number of the pass, among those over the loader.
        batches: number of batches handed out in this process.
        first_step: number of steps of the run when the first batch was handed out; None before.
        is_companion: True if the body of another loop asks for the batches.
        is_ended: True if the pass gave its last batch.
        is_uncounted: True for a plain iteration whose batches are not counted.
        is_unopened: True until the first batch is asked for, if the pass is opened only then.
        is_seen: True if a training forward pass ran since the pass began.
    """

    def __init__(self, loops: PassOwner, position: LoaderPosition) -> None:
        self._loops, self.position, self.iteration = loops, position, position.iteration
        self.number, self.batches = len(position.passes.finished), 0
        self.first_step: int | None = None
        self.is_companion = self.is_ended = self.is_uncounted = self.is_unopened = self.is_seen = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self.position.loader)

    def __next__(self) -> Any:
        if self.is_ended:
            raise StopIteration
        data = self._loops.next_batch(self)
        if data is END:
            if self._loops.is_resumed(self) and is_called_by_next(sys._getframe(1)):
                self.position.doubt(COUNTS_BY_ITSELF)
            self.is_ended = True
            self._loops.end(self)
            raise StopIteration
        return data

    def __del__(self) -> None:  # `break`, or an exception in the body
        if not self.is_ended:
            self.is_ended = True
            self._loops.end(self)


_STEPS_A_BATCH_MAX = 100  # a pass that is asked for no batch in so many steps is one that no loop iterates over any more


class RunningPasses:
    """The running passes over the tracked loaders of a run.

    Args:
        run: the run.

    Attributes:
        positions: positions in the loaders over which the script has its own loops.
    """

    def __init__(self, run: LoopRun) -> None:
        self._run = run
        self.positions: list[LoaderPosition] = []
        self._alive: weakref.WeakSet[LoaderPass] = weakref.WeakSet()
        self._leader: weakref.ref[LoaderPass] | None = None
        self._is_given_up = False

    def add(self, p: LoaderPass) -> None:
        """Add a pass that begins."""
        self._alive.add(p)

    def discard(self, p: LoaderPass) -> None:
        """Remove a pass that has ended."""
        self._alive.discard(p)

    def under_way(self) -> Iterator[LoaderPass]:
        """Yield the passes that count and are open."""
        return (p for p in self._alive if not (p.is_ended or p.is_uncounted or p.is_unopened))

    @property
    def leader(self) -> LoaderPass | None:
        """The pass whose batches are the boundaries."""
        found = self._leader() if self._leader is not None else None
        return found if found is not None and not found.is_ended else None

    @property
    def is_in_body(self) -> bool:
        """True if a pass is going to ask for its next batch: what is done until then belongs to one unit."""
        return not self._is_forgotten and any(p.batches for p in self.under_way())

    @property
    def _is_forgotten(self) -> bool:
        """True if no batch was asked for in so many steps that units are committed without a boundary."""
        self._is_given_up = self._is_given_up or self._run.steps_since_boundary > _STEPS_A_BATCH_MAX
        return self._is_given_up

    def choose_leader(self, asking: LoaderPass) -> None:
        """Decide whether the pass that asks for a batch leads, or is a companion."""
        has_stepped = asking.first_step is not None and self._run.journal.step > asking.first_step
        if self._run.loops:
            if not asking.is_companion:
                self.accompany(asking)
        elif has_stepped and (self.leader is None or (self._is_forgotten and self.leader is not asking)):
            self.lead(asking)
        self._is_given_up = False

    def lead(self, p: LoaderPass) -> None:
        """Make the batches of this pass the boundaries; other passes that are under way become its companions."""
        self._leader, p.is_companion = weakref.ref(p), False
        for other in self.under_way():
            if other is not p and other.batches and other.position is not p.position:
                self.accompany(other)
        p.position.passes.kind = LED
        self.end_finished()
        for position in self.positions:
            position.passes.leads = position is p.position

    def accompany(self, p: LoaderPass) -> None:
        """Make a pass the companion of the loop that leads."""
        p.is_companion = True
        if p.iteration is p.position.iteration:
            p.position.passes.begin(COMPANION)

    def release_leader(self) -> None:
        """Make the leading pass a companion: a loop of `LoggedOptimizer` leads from here on."""
        leader = self.leader
        if leader is not None:
            self.accompany(leader)
            self._leader = None

    def end_finished(self) -> None:
        """Count the passes that are over, of all loaders."""
        under_way = {id(p.iteration) for p in self.under_way()}
        for position in self.positions:
            if id(position.iteration) not in under_way and not position.is_pending:
                position.end_pass()
