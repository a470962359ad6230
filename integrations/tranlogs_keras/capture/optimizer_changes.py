"""Changes that a script makes to its optimizers between steps: another schedule, or other attributes."""

from __future__ import annotations

from operator import is_
from typing import Any

from .. import keras_internals
from ..state.state import KerasState, plain_attributes


class OptimizerChanges:
    """Compares the optimizers of a run with what they were at the last step."""

    def __init__(self, state: KerasState) -> None:
        self._state = state
        self._schedules: list[Any] = []  # of the optimizers, or their rates
        self._attributes: list[Any] = []

    def has_other_schedule(self) -> bool:
        """Return True if an optimizer was given another learning-rate schedule, which a log of gradients does not tell."""
        rates = [keras_internals.learning_rate_of(optimizer) for optimizer in self._state.variables.optimizers.values()]
        before, self._schedules = self._schedules, rates
        return len(before) == len(rates) and any(a is not b for a, b in zip(before, rates))

    def read_attributes(self) -> dict[str, Any] | None:
        """Return the plain attributes of the optimizers; None if they are those that the log has."""
        if not self._may_differ():
            return None
        now = plain_attributes(self._state.variables.optimizers)
        if now == self._state.optimizer_attributes:
            return None
        self._state.optimizer_attributes = now
        return now

    def _may_differ(self) -> bool:
        """Return True if any attribute of an optimizer is another object than at the last step."""
        held = [
            value
            for optimizer in self._state.variables.optimizers.values()
            for owner in keras_internals.layers_of(optimizer)
            for value in vars(owner).values()
        ]
        is_same = len(held) == len(self._attributes) and all(map(is_, held, self._attributes))
        self._attributes = held
        return not is_same
