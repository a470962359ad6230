"""A script's own `for batch in loader:` over a tracked loader: its batches are boundaries, and it resumes at the next one.

Python looks `__iter__` up on the type, so a tracked loader gets a subclass of its class that gives out passes. A pass is one
iteration over the loader. The one that asks for a batch first after a step *leads*: what it asks for are boundaries. Another
loader's pass that is asked meanwhile is its companion (`zip`, a second source): its position comes back, too. The rest are
what they always were: passes under `no_grad`, before `recover()`, over the leading loader in the loop's own body, in another
thread or process, after `close()`.

After a crash the script runs from its start. Passes that had taken their steps yield nothing, those that never took any (a
look at a batch, an evaluation) run as before, in the recorded order, and the one in which the run stood goes on. Code per
epoch runs again for the finished ones; what it did to the state is undone when the live pass is opened.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch

from tranlogs.training import Journal, LiveReport

from ..data.loader_class import iterating
from ..data.position import COMPANION, END, IDLE, LED, Cursor, LoaderPosition
from ..data.rng import get_rng
from ..state.auxiliary import Auxiliary
from .finished_pass import COUNTS_BY_ITSELF, FinishedPass, is_called_by_next

_log = logging.getLogger("tranlogs")
_STEPS_A_BATCH_MAX = 100  # a pass that is not asked for so many steps is one that nobody iterates over any more


class LoopRun(Protocol):
    """A run as the loops of its script see it.

    Attributes:
        run: folder of the run.
        journal: of this process.
        auxiliary: has the positions in the tracked loaders.
        report: of the recovery.
    """

    run: Path
    journal: Journal
    auxiliary: Auxiliary

    @property
    def report(self) -> LiveReport:
        """Report of the recovery."""
        ...

    @property
    def steps_since_boundary(self) -> int:
        """Number of steps and after-images since the last boundary."""
        ...

    @property
    def loops(self) -> list[object]:
        """The loops of `LoggedOptimizer` that are running, the outermost first."""
        ...

    @property
    def is_logging(self) -> bool:
        """True if training has begun, in this process, and the run is open."""
        ...

    def boundary(self, asking: object = None) -> None:
        """Commit what came since the last boundary: the loop `asking` wants its next batch."""
        ...

    def note_early_writes(self) -> None:
        """Report what was written between the recovery and the first batch."""
        ...

    def remember(self) -> None:
        """Copy the state, before code per epoch runs again."""
        ...

    def go_live(self) -> None:
        """Undo what code per epoch did: the loop in which the run stood is about to be opened."""
        ...


class Pass:
    """One iteration over a tracked loader.

    Attributes:
        number: of the pass, among those over the loader.
        batches: handed out in this process.
        first_step: steps of the run when the first of them was.
        is_companion: asked in the body of another loop.
        is_uncounted: nobody counts: an iteration as it always was.
        is_unopened: opened when it is first asked.
    """

    def __init__(self, loops: UserLoops, position: LoaderPosition) -> None:
        self.loops, self.position, self.cursor = loops, position, position.cursor
        self.number, self.batches = len(position.passes), 0
        self.first_step: int | None = None
        self.is_companion = self.is_ended = self.is_uncounted = self.is_unopened = self.is_seen = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self.position.loader)

    def __next__(self) -> Any:
        if self.is_ended:
            raise StopIteration
        data = self.loops.ask(self)
        if data is END:
            if self.loops.is_resumed(self) and is_called_by_next(sys._getframe(1)):
                self.position.doubt(COUNTS_BY_ITSELF)
            self.is_ended = True
            self.loops.ended(self)
            raise StopIteration
        return data

    def __del__(self) -> None:  # `break`, or an exception in the body
        if not self.is_ended:
            self.is_ended = True
            self.loops.ended(self)


class UserLoops:
    """All such loops of a run.

    Attributes:
        has_skipped: whether code per epoch has run again for epochs that were finished before the crash.
    """

    def __init__(self, run: LoopRun) -> None:
        self._run = run
        self._alive: weakref.WeakSet[Pass] = weakref.WeakSet()
        self._leader: weakref.ref[Pass] | None = None
        self._asked_last: weakref.ref[Pass] | None = None
        self._resumed: weakref.ref[Pass] | None = None  # the one in which the run stood
        self._thread = threading.get_ident()
        self._positions: list[LoaderPosition] = []
        self.has_skipped = False
        self._early: list[LoaderPosition] = []  # in whose loops training had not begun
        self._is_given_up = False

    # The loader's class

    def adopt(self, position: LoaderPosition) -> None:
        """Give the loader a class whose `__iter__` gives out passes."""
        position.loader.__class__ = iterating(
            position.loader, position.loader_class, lambda: self.iterate(position), _tranlogs_loops=self
        )
        self._positions.append(position)

    def release(self) -> None:
        """Give the loaders their classes back."""
        is_over = not self._run.loops and not any(True for _ in self._under_way())
        for position in self._positions:
            position.release(is_over=is_over)
            if getattr(type(position.loader), "_tranlogs_loops", None) is self:
                position.loader.__class__ = position.loader_class
        for position in self._run.auxiliary.loaders.values():
            if position not in self._positions:  # of a trainer's loop
                position.release(is_over=True)

    # What the run asks

    @property
    def leader(self) -> Pass | None:
        """The pass whose batches are the boundaries."""
        found = self._leader() if self._leader is not None else None
        return found if found is not None and not found.is_ended else None

    @property
    def is_in_body(self) -> bool:
        """Whether a pass is going to ask for its next batch: what is done until then belongs to one unit."""
        return not self._is_forgotten and any(p.batches for p in self._under_way())

    def is_resumed(self, p: Pass) -> bool:
        """Return True if the run stood in this pass, and its batches are boundaries."""
        return self._resumed is not None and self._resumed() is p and not p.is_companion and not self._run.loops

    @property
    def is_skipping(self) -> bool:
        """Whether the loop in which the run stood is not open yet."""
        return self._run.auxiliary.is_waiting

    @property
    def is_led(self) -> bool:
        """Whether the run stood in a loop of the script's own, which is not open yet."""
        return self.is_skipping and any(position.leads for position in self._positions)

    def leave(self) -> None:
        """A loop of ours begins, so the script's own before it are over; what still holds one has a companion."""
        if self.is_skipping:
            return
        leader = self.leader
        if leader is not None:
            _log.warning(
                "%s: batches(), epochs() or steps() began while a loop over a tracked loader was under way. From here "
                "on theirs are the places to come back to",
                self._run.run,
            )
            self._accompany(leader)
            self._leader = None
        self._end_all()

    def saw_forward(self) -> None:
        """A training forward pass: a loop that has taken two batches before the first of these reads ahead."""
        asked = self._asked_last() if self._asked_last is not None else None
        is_second = asked is not None and not asked.is_seen and not asked.is_ended and asked.batches > 1
        for p in self._under_way():
            p.is_seen = True
        if asked is not None and is_second:
            asked.position.doubt(
                "a loop took its second batch before the first one went through the model. If it reads ahead (a prefetcher), a "
                "batch that it holds is left out after a resume: let it read from optimizer.batches(loader) no more than one "
                "batch at a time"
            )

    def note_unreached(self) -> None:
        """Report at the end of the script that its loops never came to the one in which the run stood."""
        if self.is_skipping and self.has_skipped and not self._run.loops:
            self._run.report.warn(
                "the script ended before its loops came to the place in which the run stood: it leaves finished epochs out by "
                "itself, and the tracked loader leaves them out as well. Write range(epochs) in place of "
                "range(start_epoch, epochs), or take the epochs from optimizer.epochs(...)",
                False,
            )

    def began_in_a_loop(self) -> None:
        """The first step of a fresh run was taken without `recover()`: nobody has counted the batches that led to it."""
        for position in () if self._run.loops else self._early:
            position.doubt(
                "its loop was begun before recover() was called, so the place in it is not known: call recover() before the "
                "loop, also where the run is new"
            )

    # Passes

    def iterate(self, position: LoaderPosition) -> Iterator[Any]:
        """What `iter(loader)` gives."""
        run, leader = self._run, self.leader
        is_in_own_body = position in run.loops or (leader is not None and leader.position is position)
        is_here = threading.get_ident() == self._thread
        if not run.is_logging or not torch.is_grad_enabled() or is_in_own_body or not is_here:
            if not run.is_logging and torch.is_grad_enabled() and is_here and position not in self._early:
                self._early.append(position)
            return position.iterate_plainly()
        if self.is_skipping and not run.loops:
            return self._skip(position)
        return self._begin(position, is_companion=leader is not None or bool(run.loops))

    def _skip(self, position: LoaderPosition) -> Iterator[Any]:
        """Passes before the one in which the run stood come in their recorded order."""
        if not self.has_skipped:
            self._run.note_early_writes()
        kind = position.next_finished()
        if kind is not None:
            if not self.has_skipped:
                _log.warning(
                    "%s: epochs that were finished give no batches, and the code around their loops runs again "
                    "(validation, files of the best model). optimizer.epochs(...) leaves them out",
                    self._run.run,
                )
            self.has_skipped = True
            if kind == IDLE:
                return position.iterate_plainly()
            self._run.remember()
            self._run.auxiliary.set_entered(position)
            return FinishedPass(position, is_leader=kind == LED)
        if position.leads:
            return self._go_on(position)
        if position.is_companion or self.is_led:
            return self._late(position)
        if position.is_amid_ours:
            return position.iterate_plainly()
        self._run.go_live()
        return self._begin(position, is_companion=False)

    def _go_on(self, position: LoaderPosition) -> Pass:
        """The pass in which the run stood."""
        self._run.go_live()
        p = self._new(position)
        self._resumed = weakref.ref(p)
        if position.batch:
            self._lead(p)
        position.open()
        return p

    def _late(self, position: LoaderPosition) -> Pass:
        """A pass that nobody may ask: the code around it may run for a finished epoch."""
        p = self._new(position)
        p.is_unopened = True
        return p

    def _begin(self, position: LoaderPosition, *, is_companion: bool) -> Pass:
        if position.is_companion and position.is_pending and not self._is_new_code:  # the rest of what was recorded
            return self._late(position)
        went_along = position.was_companion or position.pass_kind == COMPANION
        is_alone = not (is_companion or went_along or any(True for _ in self._under_way()))
        if not is_companion:
            self._end_all()
        position.begin_pass(is_companion=is_companion, leads=is_alone)
        if is_alone:  # the code before it ran
            self._run.boundary(position)
        p = self._new(position)
        p.is_companion = is_companion
        position.open()
        return p

    @property
    def _is_new_code(self) -> bool:
        """Whether code before a loop runs for the first time: at an epoch of ours, or once the resumed loop has ended."""
        outer = self._run.loops[0] if self._run.loops else None
        if isinstance(outer, LoaderPosition):
            return outer.batch == 0
        resumed = self._resumed() if self._resumed is not None else None
        return self._resumed is not None and (resumed is None or resumed.is_ended)

    def _new(self, position: LoaderPosition) -> Pass:
        p = Pass(self, position)
        self._alive.add(p)
        return p

    def ask(self, p: Pass) -> Any:
        """The next batch of a pass, or END."""
        position, run = p.position, self._run
        if p.is_unopened:
            self._open_late(p)
        if not p.is_uncounted and p.cursor is not position.cursor:
            p.is_uncounted = p.is_companion or not position.take_back(p.number, p.cursor)
        if p.is_uncounted:
            return END if p.cursor.live is None else next(p.cursor.live, END)
        if run.is_logging and threading.get_ident() == self._thread:
            self._see_who_leads(p)
            if self.leader is p:
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

    def _open_late(self, p: Pass) -> None:
        p.is_unopened = False
        position = p.position
        if self.is_skipping and not self._run.loops:  # a look at a batch: as on a fresh start
            p.is_uncounted = True
            p.cursor = Cursor(live=position.iterate_plainly())
            return
        p.is_companion = True
        if not (position.is_pending and position.is_companion):
            position.begin_pass(is_companion=True, leads=False)
        p.cursor = position.cursor
        position.open()

    def _see_who_leads(self, p: Pass) -> None:
        has_stepped = p.first_step is not None and self._run.journal.step > p.first_step
        if self._run.loops:
            if not p.is_companion:
                self._accompany(p)
        elif has_stepped and (self.leader is None or (self._is_forgotten and self.leader is not p)):
            self._lead(p)
        self._is_given_up = False

    @property
    def _is_forgotten(self) -> bool:
        """Whether nobody has asked for so long that steps are committed without."""
        self._is_given_up = self._is_given_up or self._run.steps_since_boundary > _STEPS_A_BATCH_MAX
        return self._is_given_up

    def _lead(self, p: Pass) -> None:
        """This pass's batches are the boundaries; others that are under way are its companions."""
        self._leader, p.is_companion = weakref.ref(p), False
        for other in self._under_way():
            if other is not p and other.batches and other.position is not p.position:
                self._accompany(other)
        p.position.pass_kind = LED
        self._end_all()
        for position in self._positions:
            position.leads = position is p.position

    def _accompany(self, p: Pass) -> None:
        p.is_companion = True
        if p.cursor is p.position.cursor:
            p.position.pass_kind, p.position.leads = COMPANION, False

    def ended(self, p: Pass) -> None:
        """A pass gave its last batch, or nobody holds it any more."""
        self._alive.discard(p)
        position = p.position
        if p.is_unopened:
            if not self.is_skipping and position.is_companion and position.is_pending:
                position.end_pass()
        elif not p.is_uncounted:
            p.cursor.live = None
            if p.is_companion and position.cursor is p.cursor:
                position.end_pass()

    def _under_way(self) -> Iterator[Pass]:
        return (p for p in self._alive if not (p.is_ended or p.is_uncounted or p.is_unopened))

    def _end_all(self) -> None:
        """Count what is over, of all loaders."""
        under_way = {id(p.cursor) for p in self._under_way()}
        for position in self._positions:
            if id(position.cursor) not in under_way and not position.is_pending:
                position.end_pass()
