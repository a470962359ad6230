"""What changes besides the logged updates: writes that no step made, settings of optimizers, updates that come out otherwise.

A gradient log compares the variables with what the backend remembers of them. A weight log compares digests of their bytes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

from tranlogs.records import Payload, Tensor
from tranlogs.training import Journal, Place, ScanSchedule

from .. import keras_internals
from ..backends import Gradients
from ..backends.arrays import Values, same_bits, to_array
from ..state.state import KerasState, digest, plain_attributes
from ..state.variables import Look

_log = logging.getLogger("tranlogs")
_BOUNDARY: Place = "at a boundary"


class WatchedWrites:
    """Finds writes that no step made, and logs an after-image of what they changed.

    Attributes:
        images: number of after-images that were logged.
        looks_behind_steps: True if anything may write between a step and the boundary after it.
        frozen: the values that were last read of watched variables that no step changes.
    """

    def __init__(self, state: KerasState, journal: Journal, on_late: Callable[[str], None]) -> None:
        self._state, self._backend, self._journal, self._on_late = state, state.backend, journal, on_late
        self.images = 0
        self.looks_behind_steps = True
        self.frozen: Sequence[Values] = []
        self._schedule, self._look_seconds = ScanSchedule(), 0.0  # the fastest look so far
        self._digests: dict[str, int] = {}  # by name; of a weight log only

    @property
    def _log_is_weights(self) -> bool:
        return self._state.log == "weights"

    def remember(self) -> None:
        """Take all state as it is now for what the log holds."""
        self.hold(self.values())
        if self._log_is_weights:
            self._digests = self._digests_of(self.updated_values())

    def hold(self, values: Sequence[Values] | None) -> None:
        """Take the values of the watched variables for what the log holds."""
        plan = self._state.plan
        self._backend.remember(plan.watched_variables, values)
        self.frozen = [] if values is None else values[len(plan.updated) :]

    def values(self) -> Sequence[Values] | None:
        """Return the values of the watched variables; None if the backend notices writes without them."""
        return self._backend.values_of(self._state.plan.watched_variables) if self._backend.watches_values else None

    def updated_values(self) -> Sequence[Values]:
        """Return the values of the variables that steps update."""
        return self._backend.values_of(self._state.plan.updated_variables)

    def names(self) -> list[str]:
        """Return the names of variables that were written since `remember`."""
        if self._log_is_weights:
            now = self._digests_of(self.updated_values())
            return [name for name, value in now.items() if self._digests.get(name) != value]
        plan = self._state.plan
        return [plan.watched[i].name for i in self._backend.changed(plan.watched_variables)]

    def log(self, values: Sequence[Values] | None) -> list[str]:
        """Log an after-image of what was written since the last look; return the names of these variables.

        `values` are those of the watched variables, if they were just read.
        """
        plan = self._state.plan
        slots, variables = plan.watched, plan.watched_variables
        changed = self._backend.changed(variables, values)
        if changed and self._log_is_weights:
            self._append_image(self.take_changed(self.updated_values()))
        elif changed:
            read = self._backend.values_of([variables[i] for i in changed]) if values is None else [values[i] for i in changed]
            self._append_image([(slots[i].name, to_array(value)) for i, value in zip(changed, read, strict=True)])
        if changed or values is not None:
            self.hold(values)
        return [slots[i].name for i in changed]

    def _append_image(self, tensors: list[Tensor]) -> None:
        if tensors and not self._journal.is_suspended:  # else a checkpoint will hold it all
            self._journal.append_image(Payload.of(tensors), {})
            self.images += 1

    # At a boundary.

    def look(self, after: Sequence[Values] | None, *, is_end: bool) -> Look:
        """Look at the variables at a boundary, and log what was written after the last step.

        `after` are values that the last step has left of the variables that a boundary holds, if they are known. At
        the end of an epoch or a fit (`is_end`) callbacks of all kinds have run.
        """
        self._schedule.count_unit()
        must_look = is_end or self.looks_behind_steps or not self._backend.watches_values or self._log_is_weights
        if after is not None and not must_look:
            step_seconds = self._state.fingerprint.step_seconds
            if not self._schedule.is_full_scan_due(_BOUNDARY, self._look_seconds, step_seconds):
                return self._state.plan.look_of(after)
        start = time.perf_counter()
        if (is_end or self._log_is_weights) and self._state.variables.has_grown():
            self._state.variables.refresh()
        look = self._state.look()
        written = self.log(look.watched)
        if written and not must_look and self._schedule.note_write(_BOUNDARY):
            self._on_late(written[0])
        seconds = time.perf_counter() - start
        self._look_seconds = min(self._look_seconds or seconds, seconds)
        return look

    # Weight logs.

    def take_changed(self, values: Sequence[Values]) -> list[Tensor]:
        """Return the variables whose bytes are not those that the log holds, and take the values for what it holds."""
        known, self._digests = self._digests, self._digests_of(values)
        return [
            (slot.name, to_array(value))
            for slot, value in zip(self._state.plan.updated, values, strict=True)
            if known.get(slot.name) != self._digests[slot.name]
        ]

    def digests(self) -> list[int]:
        """Return the digests of the variables as the log holds them."""
        return list(self._digests.values())

    def _digests_of(self, values: Sequence[Values]) -> dict[str, int]:
        return {slot.name: digest(value) for slot, value in zip(self._state.plan.updated, values, strict=True)}


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


class RepeatedUpdate:
    """Repeats the update of some steps from the state before it, and compares the results bit for bit.

    `give_up` is called with a reason where gradients are not enough.
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

        `after` are the values that the first update has left.
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
