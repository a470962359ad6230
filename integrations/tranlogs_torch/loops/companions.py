"""Companions: iterations over tracked loaders that the body of a loop of `LoggedOptimizer` asks for batches.

A second loader of a GAN, one that is validated on, a `zip`, an iterator that is held from epoch to epoch: their positions come
back with that of the loop. Python looks `__iter__` up on the type, so a tracked loader gets a subclass of its class that gives
out passes. A pass is one iteration over the loader; it counts as long as a running loop asks for its batches.

Other iterations are not counted: outside of all loops (a plain `for batch in loader`, a look at a batch), under `no_grad`,
before `recover()`, over the loader of the running loop itself, in another thread or process, after `close()`.

After a crash the script runs from its start. A pass that begins where the recorded one did is opened by its first batch in a
loop: it is the rest of the recorded pass.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from ..data.loader_class import iterating
from ..data.loader_iteration import END, LoaderIteration
from ..data.loader_position import LoaderPosition
from ..data.rng import get_rng, set_rng
from .loops import Loops
from .run_parts import RunParts

_BEGUN_OUTSIDE = (
    "an iteration over a tracked loader gave batches before the loop that asks for more, so its position is unknown. Begin the "
    "iteration anew for the loop"
)


class LoaderPass:
    """One iteration over a tracked loader.

    Attributes:
        position: position in the loader.
        iteration: the iteration that the pass makes.
        is_unopened: True until the first batch is asked for, if the pass is opened only then.
        is_uncounted: True once it is known that the pass is not a companion.
        was_outside: True once a batch was asked for outside of all loops.
        is_ended: True if the pass gave its last batch.
    """

    def __init__(self, companions: Companions, position: LoaderPosition, *, is_unopened: bool) -> None:
        self._companions, self.position, self.iteration = companions, position, position.iteration
        self.is_unopened = is_unopened
        self.is_uncounted = self.was_outside = self.is_ended = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self.position.loader)

    def __next__(self) -> Any:
        data = END if self.is_ended else self._companions.next_batch(self)
        if data is END:
            self._end()
            raise StopIteration
        return data

    def __del__(self) -> None:  # `break`, or an exception in the body
        self._end()

    def _end(self) -> None:
        if not self.is_ended:
            self.is_ended = True
            self._companions.end(self)


class Companions:
    """The companions of a run.

    Args:
        parts: of the run.
        loops: of `LoggedOptimizer`.
        running: those that are running.
    """

    def __init__(self, parts: RunParts, loops: Loops, running: list[object]) -> None:
        self._parts, self._loops, self._running = parts, loops, running
        self._positions: list[LoaderPosition] = []
        self._passes: weakref.WeakSet[LoaderPass] = weakref.WeakSet()
        self._thread = threading.get_ident()

    def adopt(self, position: LoaderPosition) -> None:
        """Give the loader a class whose `__iter__` gives out passes."""
        position.loader.__class__ = iterating(
            position.loader, position.source.plain_class, lambda: self._iterate(position), _tranlogs_companions=self
        )
        self._positions.append(position)

    def release(self) -> None:
        """Give the loaders their classes back."""
        is_over = not self._running and not any(True for _ in self._under_way())
        for position in self._positions:
            position.release(is_over=is_over)
            if getattr(type(position.loader), "_tranlogs_companions", None) is self:
                position.loader.__class__ = position.source.plain_class
        for position in self._parts.auxiliary.loaders.values():
            if position not in self._positions:  # of a trainer's loop
                position.release(is_over=True)

    def rejoin(self) -> None:
        """Let passes that are under way go on at the positions to which their loaders were set."""
        for p in self._under_way():
            p.iteration = p.position.iteration

    def _under_way(self) -> Iterator[LoaderPass]:
        return (p for p in self._passes if not (p.is_ended or p.is_uncounted or p.is_unopened))

    def _iterate(self, position: LoaderPosition) -> Iterator[Any]:
        """Return what `iter(loader)` returns."""
        is_here = threading.get_ident() == self._thread
        if not self._parts.logged.phase.is_logging or not is_here or not torch.is_grad_enabled() or position in self._running:
            return position.source.iterate_plainly()
        if not self._running and not self._parts.restarts.is_open:
            self._parts.restarts.open()  # before a plain loop, since the variables of its body do not start over
        is_unopened = self._runs_again(position)
        if not is_unopened:
            position.begin_pass()
        p = LoaderPass(self, position, is_unopened=is_unopened)
        self._passes.add(p)
        if not is_unopened:
            position.open()
        return p

    def _runs_again(self, position: LoaderPosition) -> bool:
        """Return True if the code that begins a pass may run once more after a crash."""
        outer = self._running[0] if self._running else None
        if isinstance(outer, LoaderPosition) and outer.batch == 0:  # the code before an epoch's batches runs for the first time
            return False
        return (position.is_in_pass and position.is_pending) or self._loops.runs_again

    def next_batch(self, p: LoaderPass) -> Any:
        """Return the next batch of a pass, or END."""
        position, is_looping = p.position, bool(self._running)
        if is_looping and p.was_outside:
            position.doubt(_BEGUN_OUTSIDE)
        p.was_outside |= not is_looping
        if p.is_unopened:
            self._open(p)
        elif not p.is_uncounted and (p.was_outside or p.iteration is not position.iteration):  # or another pass has begun
            p.is_uncounted = True
            if p.iteration is position.iteration:
                position.end_pass()
        return p.iteration.take_uncounted() if p.is_uncounted else position.take()

    def _open(self, p: LoaderPass) -> None:
        """Open a pass whose first batch is asked for."""
        position, p.is_unopened = p.position, False
        is_recorded = position.is_in_pass and position.is_pending
        if p.was_outside or (self._loops.runs_again and not is_recorded):  # as on a fresh start, and undone with the code
            p.is_uncounted, p.iteration = True, LoaderIteration(live=position.source.iterate_plainly())
            return
        if not is_recorded:
            position.begin_pass()
        p.iteration, generators = position.iteration, position.source.generators
        before = get_rng(generators)
        position.open()
        if is_recorded:  # also one that had begun and gave no batch yet: what it drew then is in the record
            set_rng(before, generators)

    def end(self, p: LoaderPass) -> None:
        """Note that a pass gave its last batch, or that no loop holds it any more."""
        self._passes.discard(p)
        position = p.position
        if p.is_unopened:
            if position.is_in_pass and position.is_pending and not self._parts.auxiliary.is_waiting:
                position.end_pass()
        else:
            p.iteration.live = None
            if not p.is_uncounted and position.iteration is p.iteration:
                position.end_pass()
