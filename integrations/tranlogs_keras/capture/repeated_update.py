"""Some updates of a gradient log are computed twice, to check that gradients are all that an update consumes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ..backends import Gradients
from ..backends.arrays import Values, same_bits
from ..state.state import KerasState

_log = logging.getLogger("tranlogs")


class RepeatedUpdate:
    """Repeats the update of some steps from the state before it, and compares the results bit for bit.

    Args:
        state: of the run.
        apply: computes an update from gradients, and returns the values that it has left.
        give_up: called with a reason where gradients are not enough: weights are logged from the next step on.
    """

    def __init__(
        self, state: KerasState, apply: Callable[[Gradients], Sequence[Values]], give_up: Callable[[str], None]
    ) -> None:
        self._state, self._apply, self._give_up = state, apply, give_up
        self._before: list[Values] = []

    def begin(self, values: Callable[[], Sequence[Values]]) -> None:
        """Count a step; if its update is going to be repeated, copy the values that it starts from."""
        if self._state.backend.check.is_due():
            self._before = [value.copy() for value in values()]

    @property
    def is_due(self) -> bool:
        """True if the update of the present step is going to be repeated."""
        return bool(self._before)

    def forget(self) -> None:
        """Do not repeat the present update."""
        self._before = []

    def written_since(self, values: Sequence[Values]) -> list[str]:
        """Return the names of what was written since `begin`."""
        slots = self._state.plan.updated
        return [slot.name for slot, a, b in zip(slots, self._before, values, strict=True) if not same_bits(a, b)]

    def repeat(self, gradients: Gradients, after: Sequence[Values]) -> Sequence[Values]:
        """Repeat the update of a step that was taken in two calls; return the values that it has left.

        Args:
            gradients: of the step.
            after: the values that the first update has left.
        """
        wanted = [value.copy() for value in after]
        again = self._apply_again(gradients)
        if (other := self.first_difference(wanted, again)) is not None:
            self.set_values(wanted)
            self._give_up(f"the same gradients gave a different {other} when the update was repeated")
        self._before = []
        return again

    def repeat_whole(self, gradients: Gradients, after: Sequence[Values]) -> Sequence[Values]:
        """Repeat the update of a step that was taken in one call.

        If the update gives other bits within that call than in redo, steps are taken in two calls from here on, and of this
        step the result of redo is kept.
        """
        wanted = [value.copy() for value in after]
        again = self._apply_again(gradients)
        if (other := self.first_difference(wanted, again)) is not None:
            _log.debug("%s differs when its update is taken apart from the step: steps are taken in two calls", other)
            self._state.is_halved = True
            return self.repeat(gradients, again)
        self._before = []
        return again

    def _apply_again(self, gradients: Gradients) -> Sequence[Values]:
        self.set_values(self._before)
        return self._apply(gradients)

    def first_difference(self, wanted: Sequence[Values], found: Sequence[Values]) -> str | None:
        """Return the name of the first variable whose values differ; None if all are equal."""
        slots = self._state.plan.updated
        return next((slot.name for slot, a, b in zip(slots, wanted, found, strict=True) if not same_bits(a, b)), None)

    def set_values(self, values: Sequence[Values]) -> None:
        """Set the variables that an update changes."""
        for slot, value in zip(self._state.plan.updated, values, strict=True):
            self._state.backend.assign(slot.variable, value)
