"""The loops that `LoggedOptimizer` gives out: `steps`, `batches` and `epochs`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from tranlogs.base.errors import UsageError
from tranlogs.base.notes import Note
from tranlogs.training import LoopDecision, describe_weights_read

from ..capture.forward_hook import ReadHook
from ..data.epoch import Epoch
from ..data.loader_position import LoaderPosition
from ..data.rng import get_rng
from ..state.rollback_copy import StateBackup
from .boundaries import Boundaries, Turns
from .recovery import Recovery
from .run_parts import RunParts

_CODE_OF_EPOCH = Note(
    "different",
    "code that runs once per epoch, before its loop, changes an optimizer's state or its groups, and it ran again",
    "Take the epochs from optimizer.epochs(...), which skips finished ones, and make the change depend on epoch.batch == 0",
)


class Loops:
    """The loops of a run that are running.

    While code runs again, for an epoch that was left in its middle or between finished loops, the state is kept aside; it is
    set back when the loop is opened in which the run stood.

    Args:
        parts: of the run.
        unit: that is running.
        recovery: whose unit may be computed again.

    Attributes:
        end: "complete" if the last loop gave all that it had; else where it was left; empty if that is not known.
    """

    def __init__(self, parts: RunParts, unit: Boundaries, recovery: Recovery) -> None:
        self._parts, self._unit, self._recovery = parts, unit, recovery
        self.end = ""
        self._backup: StateBackup | None = None  # made before code per epoch runs again
        self._between: StateBackup | None = None  # made before code between finished loops runs again
        self._epoch: tuple[LoaderPosition, int] | None = None  # which the script takes the batches of
        self._read_hooks: list[RemovableHandle] = []  # while that code runs
        self._watched_step = -1
        self._has_named_read = False

    @contextmanager
    def _looping(self, loop: object, name: str, length: int | None, position: LoaderPosition | None) -> Iterator[LoopDecision]:
        """Run a loop: what it is in the sequence of the run's loops, and what it does to the state as it begins and ends."""
        auxiliary, sequence = self._parts.auxiliary, self._parts.auxiliary.sequence
        self.unwatch_reads()
        self._parts.logged.phase.open_loop()
        sequence.demand_none_running(name)
        newest = self._recovery.read_newest_loop()
        source, begin = auxiliary.name_of(position), partial(auxiliary.begin_loop, position)
        decision = sequence.enter(name, length, begin, source, newest=newest, done=self._count_done(name, position))
        if decision == "finished":
            self._parts.restarts.pass_finished(sequence.entered - 1)
            yield decision
            self._pass()
            return
        if sequence.shortened:
            self._parts.report.warn(sequence.shortened, False)
        if decision == "running":
            self._undo_code_between()
        self._parts.restarts.open(sequence.entered - 1)
        self._unit.enter(loop)
        try:
            if decision == "new" and sequence.entered > 1 and self._unit.steps_since_boundary:
                self._parts.logged.phase.boundary()  # the loop before was left by `break` after a step
            yield decision
        finally:
            self._unit.leave(loop)
            self._parts.restarts.leave()
            is_over = sequence.is_over
            sequence.leave()
            self._undo_code_of_epoch()  # of an epoch that was left in its middle again, before a batch
            self._unit.leave_loop()
        if is_over:
            self._pass()
        else:
            auxiliary.open_loop()  # nothing may have been left of it: the code after it draws as it did before the crash

    def _count_done(self, name: str, position: LoaderPosition | None) -> int:
        """Return the number of epochs, batches or turns that are done of the loop in which the run stood."""
        auxiliary, start = self._parts.auxiliary, self._parts.auxiliary.sequence.recorded.start
        if position is None:
            return auxiliary.count - start.get("turn", 0)
        if name.startswith("epochs("):
            return position.epoch - start.get("epoch", 0)
        return position.taken - start.get("taken", 0)

    def note_start(self) -> None:
        """Note that the script goes on behind `recover()`, with code that runs at each start.

        The state is kept aside if the run stood behind a finished loop, where recovery may have landed in its last unit: code
        before that loop runs again, too.
        """
        sequence = self._parts.auxiliary.sequence
        self._watch_reads()
        stood_behind = sequence.has_finished or self._recovery.read_newest_loop().count > 1
        if self._parts.auxiliary.is_waiting and stood_behind and not sequence.entered:
            self._between = StateBackup(self._parts.state, self._parts.auxiliary, has_optimizers=True)

    def _pass(self) -> None:
        """Go on after a finished loop. Code between it and a recorded one runs again, and what it does is undone there."""
        sequence = self._parts.auxiliary.sequence
        if sequence.entered == sequence.recorded.count:
            self._undo_code_between()
        elif self._parts.auxiliary.is_waiting and self._between is None:
            self._parts.logged.phase.note_writes()
            self._between = StateBackup(self._parts.state, self._parts.auxiliary, has_optimizers=True)
        self._parts.auxiliary.pass_loop()
        if self._between is not None:
            self._watch_reads()

    def _watch_reads(self) -> None:
        """Name it if the script reads the weights before a step: after a crash they are the newest ones, whenever it is."""
        self.unwatch_reads()
        self._watched_step = self._parts.journal.step
        parts = {id(part): part for module in self._parts.modules.values() for part in module.modules()}
        hook = ReadHook(self._note_read)
        self._read_hooks = [part.register_state_dict_pre_hook(hook) for part in parts.values()]

    def unwatch_reads(self) -> None:
        """Watch no more: a loop begins, or a step is taken outside of all loops."""
        for hook in self._read_hooks:
            hook.remove()
        self._read_hooks = []

    def _note_read(self) -> None:
        if not self._has_named_read and self._parts.journal.step == self._watched_step:
            self._has_named_read = True
            self._parts.report.name_restarts(describe_weights_read(), is_logged=True)

    def note_set_back(self) -> None:
        """End the running loop or epoch if the run was set back to a later one: the unit that was computed again ends there.

        The script's code until that place runs again, and what it does is undone.
        """
        position, number = self._epoch or (None, 0)
        if self._parts.auxiliary.sequence.is_over or (position is not None and position.is_set_back(number)):
            self._parts.auxiliary.wait()
            self._between = StateBackup(self._parts.state, self._parts.auxiliary, has_optimizers=True)

    def note_unreached(self) -> None:
        """Warn at the end of the script if it has not entered the loop in which the run stood."""
        sequence = self._parts.auxiliary.sequence
        note = sequence.describe_unreached() if self._parts.auxiliary.is_waiting else None
        if note is not None:
            self._parts.report.warn(note, bool(sequence.entered))

    def _undo_code_between(self) -> None:
        """Undo what code between finished loops did: it ran before the crash, and the record has what it did then."""
        backup, self._between = self._between, None
        if backup is not None:
            self._parts.restarts.note_undoing()
            backup.set_back()
            self._parts.auxiliary.set_positions_back()
            self._parts.writes.remember(self._parts.journal.step)

    def steps(self, until: int, name: str, *, stateless: bool) -> Iterator[int]:
        """Yield the number of each turn of a loop without a loader, from 0; a boundary follows each."""
        turns, auxiliary = Turns(self._parts, stateless=stateless), self._parts.auxiliary
        with self._looping(turns, name, until, None) as decision:
            if decision == "finished":
                return
            if stateless and auxiliary.turns == "unknown":  # the process that was killed had not declared it
                auxiliary.turns = "stateless"
                self._recovery.report.refresh()
            start, until = auxiliary.sequence.start("turn"), auxiliary.sequence.current.length or 0
            auxiliary.open_loop()
            while auxiliary.count - start < until and not auxiliary.sequence.is_over:
                auxiliary.count += 1
                self.end = f"in turn {auxiliary.count - start} of {until}"
                yield auxiliary.count - start - 1
                if auxiliary.count - start == until:
                    self._note_end(of_loop=True)
                self._parts.logged.phase.boundary(turns)
                start = auxiliary.sequence.start("turn")
            self.end = "complete"

    def batches(self, loader: DataLoader[Any], until: int | None, name: str, *, numbered: bool) -> Iterator[Any]:
        """Yield the batches of a loader over all epochs; if `numbered`, each with its number in the loop."""
        position, sequence = self._parts.auxiliary.loader(loader), self._parts.auxiliary.sequence
        with self._looping(position, name, until, position) as decision:
            if decision == "finished":
                return
            start, until = sequence.start("taken"), sequence.current.length
            for data in position.batches(None if until is None else start + until):
                self.end = "" if until is None else f"in batch {position.taken - start} of {until}"
                if position.taken - start == until:
                    self._note_end(of_loop=True)
                yield (position.taken - start - 1, data) if numbered else data
            self.end = "complete"

    def epochs(self, count: int, loader: DataLoader[Any] | None, name: str) -> Iterator[Epoch]:
        """Yield the epochs that are left, each to be iterated over for its batches."""
        auxiliary, sequence = self._parts.auxiliary, self._parts.auxiliary.sequence
        if loader is None and not auxiliary.loaders:
            raise UsageError("epochs(...) needs a loader: call track(loader=...) first, or epochs(count, loader)")
        position = next(iter(auxiliary.loaders.values())) if loader is None else auxiliary.loader(loader)
        with self._looping(position, name, count, position) as decision:
            if decision == "finished":
                return
            position.enter()
            first, count = sequence.start("epoch"), sequence.current.length or 0
            if position.batch == 0:  # else what comes before the batches runs again, and its draws do not count
                auxiliary.open_loop()
            while position.epoch - first < count and not sequence.is_over:
                number = position.epoch
                self._enter_epoch(position)
                self.end = f"in epoch {number - first + 1} of {count}"
                self._epoch = position, number
                yield Epoch.of(position, number - first)
                self._epoch = None
                if position.is_stopped:
                    break
                if position.is_set_back(number) and not sequence.is_over:
                    self._undo_code_between()
                    auxiliary.open_loop()
                    continue
                self._leave_epoch(position, number, number - first)
                self._note_end(of_loop=position.epoch - first >= count)
                self._parts.logged.phase.boundary()  # the epoch's own code ran
            self.end = "complete"

    def _note_end(self, *, of_loop: bool) -> None:
        """Note that an epoch ends, or the loop itself, with the next boundary."""
        self._parts.restarts.note_end(of_loop=of_loop)
        if of_loop:
            self._unit.expect_end()

    def _leave_epoch(self, position: LoaderPosition, number: int, number_in_loop: int) -> None:
        """End an epoch whose loop was left by `break`: the next one begins with its first batch, as without TranLogs."""
        if position.epoch > number:
            return
        if position.batch == 0 or position.is_pending:
            raise UsageError(
                f"{self._parts.settings.run}: epoch {number_in_loop + 1} gave no batch, so nothing of it would be logged. "
                "Write `for epoch in optimizer.epochs(...)`, and inside it `for batch in epoch`, not `for batch in loader`"
            )
        position.end_epoch()

    def _enter_epoch(self, position: LoaderPosition) -> None:
        """Prepare for the script's code before the epoch's loop; in the middle of an epoch that code runs again."""
        if position.batch == 0:
            position.entered = get_rng()
        elif position.is_pending:
            self._parts.auxiliary.open_loop()
            self._remember()
            self._parts.auxiliary.set_entered(position)

    def _remember(self) -> None:
        """Keep the state aside: code per epoch is about to run again, and what it does is to be undone."""
        if self._backup is None:
            self._parts.logged.phase.note_writes()
            self._backup = StateBackup(self._parts.state, self._parts.auxiliary)

    def opening(self, position: LoaderPosition) -> None:
        """Note that a loop over a loader is about to be opened."""
        if self._backup is not None and (not self._unit.running or self._unit.running[0] is position):
            self._go_live()
        self._parts.auxiliary.open_loop()
        if (
            self._unit.running or not position.is_in_pass
        ):  # else a pass of the script's own, which is never entered in its middle
            self._parts.restarts.open_pass(has_epochs=bool(self._unit.running))

    @property
    def has_backup(self) -> bool:
        """True while code around finished loops runs, which is undone."""
        return self._between is not None

    @property
    def runs_again(self) -> bool:
        """True while the script's code before the loop in which the run stood runs once more."""
        return self._backup is not None or self._parts.auxiliary.is_waiting

    def _go_live(self) -> None:
        """Set the state back: the loop in which the run stood is about to be opened."""
        self._undo_code_between()
        self._undo_code_of_epoch()
        self._parts.auxiliary.open_loop()

    def _undo_code_of_epoch(self) -> None:
        """Undo what code before the batches of an epoch did when it ran again; warn of what cannot be undone."""
        backup, self._backup = self._backup, None
        if backup is not None:
            if self._parts.writes.find_other_writes():
                self._parts.report.warn(_CODE_OF_EPOCH, True)
            backup.set_back()
            self._parts.auxiliary.set_positions_back()
            self._parts.writes.remember(self._parts.journal.step)
