"""Steps of a loop of one's own: logged where `optimizer.apply` is called, eagerly or from within a compiled function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tranlogs.base.notes import Note
from tranlogs.training import Journal, ReplayCheck, Rung

from ..backends import Gradients
from ..backends.arrays import Values
from ..backends.tap import OptimizerTap, Updates
from ..capture.steps import StepCapture
from ..state.state import KerasState


class ReplayableLoopState(KerasState):
    """The state of a loop of one's own."""

    updates: dict[str, Updates]

    def apply(self, body: dict[str, Any], gradients: Gradients, reading: Sequence[Any]) -> Sequence[Values]:
        updates = self.updates[body.get("optimizer", "optimizer")]
        updates.is_eager = body.get("eager", False)
        return updates.apply(gradients, reading)


class LoopCapture(StepCapture):
    """Logs the steps of all optimizers of a loop, as their taps call it.

    Attributes:
        is_closed: whether steps are applied and not logged.
    """

    state: ReplayableLoopState

    def __init__(
        self,
        run: Path,
        state: ReplayableLoopState,
        journal: Journal,
        rung: Rung,
        doubt: Callable[[Note], None],
        before_step: Callable[[], None],
    ) -> None:
        super().__init__(run, state, journal, rung, doubt)
        self._before_step = before_step
        self.is_closed = False
        self._check = ReplayCheck()  # of steps in graphs
        self._copies: list[Values] = []
        self._to_check: tuple[str, list[Values], Gradients, list[Values]] | None = None
        self._taps: list[OptimizerTap] = []

    def tap(self, optimizers: dict[str, Any]) -> None:
        """Stand between the script and its optimizers, until `end`."""
        for name, optimizer in optimizers.items():
            self._taps.append(self.backend.tap_optimizer(optimizer, name, self, self.state.updates[name]))

    def end(self) -> None:
        """Log nothing more, and give the optimizers back."""
        self.is_closed = True
        self.close()
        for tap in self._taps:
            tap.release()

    def _begin(self, name: str, *, is_eager: bool) -> None:
        self._before_step()
        self.which = name
        self.backend.is_eager = self.state.updates[name].is_eager = is_eager

    def _apply(self, gradients: Gradients) -> Sequence[Values]:
        return self.state.updates[self.which].apply(gradients, self.state.plan.updated_variables)

    def _body(self, record: str, fingerprint: str) -> dict[str, Any]:
        body = super()._body(record, fingerprint)
        if len(self.state.updates) > 1:
            body["optimizer"] = self.which
        if self.backend.is_eager:
            body["eager"] = True
        return body

    # Called by taps.

    def take(self, name: str, gradients: Gradients) -> None:
        """Log the gradients of an optimizer, and apply them."""
        if self.is_closed:
            self.state.updates[name].apply(gradients)
            return
        self._begin(name, is_eager=True)
        self.begin_step()
        self.take_gradients(gradients)

    def watched(self) -> Sequence[Any]:
        """Return the variables that code other than a step may write."""
        return self.state.plan.watched_variables

    def begin_in_graph(self, name: str, variables: Sequence[Any], values: Sequence[Values]) -> None:
        """Log what was written before a step that a compiled function takes."""
        if self.is_closed:
            return
        self._begin(name, is_eager=False)
        if not self.rung.logs_tensors:
            self.begin_step()
            return
        plan = self.state.plan
        known = values if variables is plan.watched_variables else self.writes.values()
        self.begin_step(known, can_repeat=False)
        self._copies = []
        if not self._log_is_weights() and known is not None and self._check.is_due():
            self._copies = [value.copy() for value in known[: len(plan.updated)]]
        self.backend.forget()

    def end_in_graph(self, name: str, gradients: Gradients, variables: Sequence[Any], values: Sequence[Values]) -> None:
        """Log the gradients of a step that a compiled function has taken."""
        if self.is_closed:
            return
        if self._log_is_weights():
            self.end_step()
            return
        if not self.rung.logs_tensors:
            self._count_step()
            return
        plan = self.state.plan
        found = values if variables is plan.reads else self.backend.values_of(plan.reads)
        self.take_step(gradients, found)
        if self._copies:
            after = [value.copy() for value in found[: len(plan.updated)]]
            self._to_check, self._copies = (name, self._copies, gradients, after), []

    # Called by the loop.

    def check_step(self) -> None:
        """Take a step that a compiled function has taken once more, from the state before it: the bits must be the same."""
        if self._to_check is None:
            return
        (name, before, gradients, wanted), self._to_check = self._to_check, None
        slots, backend = self.state.plan.updated, self.backend
        if len(slots) != len(before):
            return
        now = [value.copy() for value in self.writes.updated_values()]
        tensors = [None if g is None else backend.to_device(backend.to_host(g), backend.form_of(g)) for g in gradients]
        self._repeated.set_values(before)
        self.which, self.state.updates[name].is_eager = name, False
        other = self._repeated.first_difference(wanted, self._apply(tensors))
        self._repeated.set_values(now)
        if other is not None:
            self.give_up_gradients(f"the same gradients gave a different {other} when the update was repeated")
