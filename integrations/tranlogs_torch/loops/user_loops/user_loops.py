"""All loops of a script over its tracked loaders: what `iter(loader)` and `next(...)` do in training and after a crash."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from tranlogs.training import FROM_FIRST_EPOCH

from ...data.loader_class import iterating
from ...data.position.loader_position import LoaderPosition
from ...data.position.passes import COMPANION, END, IDLE, LED, LoaderIteration
from ...data.rng import get_rng
from .loop_run import LoopRun
from .running_passes import FinishedPass, LoaderPass, RunningPasses

_log = logging.getLogger("tranlogs")


class UserLoops:
    """The script's own loops of a run.

    Args:
        run: the run.

    Attributes:
        has_skipped: True if code per epoch has run again for epochs that were finished before the crash.
    """

    def __init__(self, run: LoopRun) -> None:
        self._run, self._passes = run, RunningPasses(run)
        self._asked_last: weakref.ref[LoaderPass] | None = None
        self._resumed: weakref.ref[LoaderPass] | None = None  # the pass in which the run stood
        self._thread = threading.get_ident()
        self.has_skipped = False
        self._early: list[LoaderPosition] = []  # positions of loops that began before training did

    # The loader's class

    def adopt(self, position: LoaderPosition) -> None:
        """Give the loader a class whose `__iter__` gives out passes."""
        position.loader.__class__ = iterating(
            position.loader, position.source.plain_class, lambda: self._iterate(position), _tranlogs_loops=self
        )
        self._passes.positions.append(position)

    def release(self) -> None:
        """Give the loaders their classes back."""
        is_over = not self._run.loops and not any(True for _ in self._passes.under_way())
        positions = self._passes.positions
        for position in positions:
            position.release(is_over=is_over)
            if getattr(type(position.loader), "_tranlogs_loops", None) is self:
                position.loader.__class__ = position.source.plain_class
        for position in self._run.auxiliary.loaders.values():
            if position not in positions:  # of a trainer's loop
                position.release(is_over=True)

    # For the run

    @property
    def leader(self) -> LoaderPass | None:
        """The pass whose batches are the boundaries."""
        return self._passes.leader

    @property
    def is_in_body(self) -> bool:
        """True if a pass is going to ask for its next batch: what is done until then belongs to one unit."""
        return self._passes.is_in_body

    @property
    def is_skipping(self) -> bool:
        """True if the loop in which the run stood is not open yet."""
        return self._run.auxiliary.is_waiting

    @property
    def is_led(self) -> bool:
        """True if the run stood in a loop of the script's own, which is not open yet."""
        return self.is_skipping and any(position.passes.leads for position in self._passes.positions)

    def leave(self) -> None:
        """End the script's own loops: a loop of `LoggedOptimizer` begins. A pass that is still held becomes its companion."""
        if self.is_skipping:
            return
        if self._passes.leader is not None:
            _log.warning(
                "%s: batches(), epochs() or steps() began while a loop over a tracked loader was running. From here on, a "
                "resume returns to the batches of the new loop",
                self._run.run,
            )
            self._passes.release_leader()
        self._passes.end_finished()

    def note_forward(self) -> None:
        """Note a training forward pass: a loop that has taken two batches before the first of these reads ahead."""
        asked = self._asked_last() if self._asked_last is not None else None
        is_second = asked is not None and not asked.is_seen and not asked.is_ended and asked.batches > 1
        for p in self._passes.under_way():
            p.is_seen = True
        if asked is not None and is_second:
            asked.position.doubt(
                "a loop took its second batch before the first one went through the model. If it reads ahead (a "
                "prefetcher), a batch that it holds is skipped after a resume: let it read from optimizer.batches(loader) "
                "one batch at a time"
            )

    def note_unreached(self) -> None:
        """Report at the end of the script that its loops never came to the one in which the run stood."""
        if self.is_skipping and self.has_skipped and not self._run.loops:
            self._run.report.warn(
                "the script ended before its loops reached the place at which the run had stopped. Either code after a "
                "finished epoch, which ran again, left the loop (early stopping), or the script skips finished epochs itself "
                "(range(start_epoch, epochs)), as the tracked loader does. Take the epochs from optimizer.epochs(...), which "
                "skips finished ones",
                True,
            )

    def note_uncounted_start(self) -> None:
        """Report loops that began before `recover()` in a fresh run: the batches that led to its first step are not counted."""
        for position in () if self._run.loops else self._early:
            position.doubt(
                "its loop began before recover() was called, so the position in it is unknown. Call recover() before the "
                "loop, also in a new run"
            )

    def rejoin(self) -> None:
        """Let passes that are under way go on at the positions to which their loaders were set."""
        for p in self._passes.under_way():
            p.iteration = p.position.iteration

    # What iter(loader) returns

    def _iterate(self, position: LoaderPosition) -> Iterator[Any]:
        run, leader = self._run, self._passes.leader
        is_in_own_body = position in run.loops or (leader is not None and leader.position is position)
        is_here = threading.get_ident() == self._thread
        if not run.is_logging or not torch.is_grad_enabled() or is_in_own_body or not is_here:
            if not run.is_logging and torch.is_grad_enabled() and is_here and position not in self._early:
                self._early.append(position)
            return position.source.iterate_plainly()
        if self.is_skipping and not run.loops:
            return self._skip(position)
        return self._begin(position, is_companion=leader is not None or bool(run.loops))

    def _skip(self, position: LoaderPosition) -> Iterator[Any]:
        """Return the next pass in the recorded order, before the pass in which the run stood."""
        if self._run.is_logging and not self._run.restarts.is_open:
            self._run.restarts.open()
        if not self.has_skipped:
            self._run.note_early_writes()
            self._run.note_user_loop()
        kind = position.passes.next_finished()
        if kind is not None:
            return self._repeat(position, kind)
        if position.passes.leads:
            return self._resume(position)
        if position.is_companion or self.is_led:
            return self._begin_unopened(position)
        if position.is_amid_logged_loop:
            return position.source.iterate_plainly()
        self._run.go_live()
        return self._begin(position, is_companion=False)

    def _repeat(self, position: LoaderPosition, kind: int) -> Iterator[Any]:
        """Return a pass that was finished before the crash: it runs again if it took no steps, else it yields nothing."""
        if not self.has_skipped:
            self._run.report.note(
                f"{FROM_FIRST_EPOCH}: finished epochs yield no batches, but the code "
                "around them runs again. A file that it writes per epoch (a checkpoint, the best model) is overwritten with "
                "the current weights. Take the epochs from optimizer.epochs(...), which skips finished ones. The run is in "
                f"epoch {position.epoch + 1}, after {position.batch} of its batches"
            )
        self.has_skipped = True
        if kind == IDLE:
            return position.source.iterate_plainly()
        self._run.remember()
        self._run.auxiliary.set_entered(position)
        return FinishedPass(position, is_leader=kind == LED)

    def _resume(self, position: LoaderPosition) -> LoaderPass:
        """Return the pass in which the run stood."""
        self._run.go_live()
        p = self._new(position)
        self._resumed = weakref.ref(p)
        if position.batch:
            self._passes.lead(p)
        position.open()
        return p

    def _begin_unopened(self, position: LoaderPosition) -> LoaderPass:
        """Return a pass that is opened with its first batch, if ever: the code around it may run for a finished epoch."""
        p = self._new(position)
        p.is_unopened = True
        return p

    def _begin(self, position: LoaderPosition, *, is_companion: bool) -> LoaderPass:
        if position.is_companion and position.is_pending and not self._is_new_code:  # the rest of the recorded pass
            return self._begin_unopened(position)
        accompanied = position.passes.was_companion or position.passes.kind == COMPANION
        is_alone = not (is_companion or accompanied or any(True for _ in self._passes.under_way()))
        if not is_companion:
            self._passes.end_finished()
        position.begin_pass(is_companion=is_companion, leads=is_alone)
        if is_alone:  # the code before the loop ran
            self._run.boundary(position)
        p = self._new(position)
        p.is_companion = is_companion
        position.open()
        return p

    @property
    def _is_new_code(self) -> bool:
        """True if code before a loop runs for the first time: in an epoch of `epochs()`, or after the resumed loop."""
        outer = self._run.loops[0] if self._run.loops else None
        if isinstance(outer, LoaderPosition):
            return outer.batch == 0
        resumed = self._resumed() if self._resumed is not None else None
        return self._resumed is not None and (resumed is None or resumed.is_ended)

    def _new(self, position: LoaderPosition) -> LoaderPass:
        p = LoaderPass(self, position)
        self._passes.add(p)
        return p

    # For passes

    def is_resumed(self, p: LoaderPass) -> bool:
        """Return True if the run stood in this pass, and its batches are boundaries."""
        return self._resumed is not None and self._resumed() is p and not p.is_companion and not self._run.loops

    def next_batch(self, p: LoaderPass) -> Any:
        """Return the next batch of a pass, or END."""
        position, run = p.position, self._run
        if p.is_unopened:
            self._open(p)
        if not p.is_uncounted and p.iteration is not position.iteration:
            p.is_uncounted = p.is_companion or not position.take_back(p.number, p.iteration)
        if p.is_uncounted:
            return END if p.iteration.live is None else next(p.iteration.live, END)
        if run.is_logging and threading.get_ident() == self._thread:
            self._passes.choose_leader(p)
            if self._passes.leader is p:
                run.boundary(position)
        data = position.take()
        if data is END:
            position.entered = get_rng()
        else:
            self._asked_last = weakref.ref(p)
            p.batches += 1
            if p.first_step is None:
                p.first_step = run.journal.step
        return data

    def _open(self, p: LoaderPass) -> None:
        """Open a pass whose first batch is asked for."""
        p.is_unopened = False
        position = p.position
        if self.is_skipping and not self._run.loops:  # a look at a batch: as on a fresh start
            p.is_uncounted = True
            p.iteration = LoaderIteration(live=position.source.iterate_plainly())
            return
        p.is_companion = True
        if not (position.is_pending and position.is_companion):
            position.begin_pass(is_companion=True, leads=False)
        p.iteration = position.iteration
        position.open()

    def end(self, p: LoaderPass) -> None:
        """Note that a pass gave its last batch, or that no loop holds it any more."""
        self._passes.discard(p)
        position = p.position
        if p.is_unopened:
            if not self.is_skipping and position.is_companion and position.is_pending:
                position.end_pass()
        elif not p.is_uncounted:
            p.iteration.live = None
            if p.is_companion and position.iteration is p.iteration:
                position.end_pass()
