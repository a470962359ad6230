"""What is logged of each step, and the watch for writes that no step made.

Gradients: what enters the outermost `optimizer.apply`, from which the same `apply` redoes the step. Weights: every variable
whose bytes the step has changed. In both, what callbacks write between steps is noticed and logged as an after-image.
The first steps of a gradient log are taken twice, to see that gradients are all that an update consumes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from tranlogs.journal import Journal
from tranlogs.log.layout import Payload
from tranlogs.log.writer import Tensor

from . import private
from .adapt import Values, same_bits, to_array
from .backends import Gradients
from .fingerprint import digest
from .state import KerasState, Look, plain_attributes
from .variables import Slot

_log = logging.getLogger("tranlogs")

_REHEARSALS = 2  # steps that are taken twice
_LOOKS, _LOOK_INSIDE = {4, 8, 16, 32}, 64  # steps, and every so many, in which writes of the train step are looked for


class StepLog:
    """Watches a model's steps; see `backends.Watcher`.

    Args:
        state: of the run.
        journal: where records go.
        expects: whether a batch was handed out; asked once a batch.
        give_up: called with a reason where gradients turn out not to be enough: weights are logged from the next step on.

    Attributes:
        steps_since_boundary: steps and after-images.
        looks_before_steps: whether anything may write between a boundary and the step behind it.
    """

    def __init__(self, state: KerasState, journal: Journal, expects: Callable[[], bool],
                 give_up: Callable[[str], None]) -> None:  # fmt: skip
        self.state, self.backend, self.journal, self._give_up = state, state.backend, journal, give_up
        self._expects = expects
        self.steps_since_boundary = 0
        self.looks_before_steps = True
        self._is_rehearsed = False
        self._schedules: list[Any] = []  # of the optimizers, or their rates
        self._before: list[Values] = []
        self._frozen: list[Values] = []  # what was last read of watched variables that no step changes
        self._hashes: dict[str, int] = {}  # of what the log has, by name; weights only
        self._began = 0.0

    def remember(self) -> None:
        """All state is as the log has it."""
        self._hold(self._watched_values())
        if self._log_is_weights():
            self._hashes = self._hashed(self._updated_values())

    # Steps (called by taps).

    def is_expected(self) -> bool:
        return self._expects()

    def begin_step(self) -> None:
        """Log what was written since the last step, and by none."""
        self._began = time.perf_counter()
        if self.backend.is_eager and not self._log_is_weights():
            self._find_other_schedules()
        if self._log_is_weights():
            self.backend.forget()  # the step's own record will hold whatever has changed
        elif self.looks_before_steps:
            self._note_writes(self._watched_values())
        if not self._log_is_weights() and self.journal.step < _REHEARSALS and not self._is_rehearsed:
            self._before = [value.copy() for value in self._updated_values()]

    def take_gradients(self, gradients: Gradients) -> None:
        """Log the gradients, then apply them."""
        self._find_inner_writes()
        if self._log_is_weights():  # as the first steps have shown
            self.backend.apply(gradients)
            self.end_step()
            return
        updated = [slot.variable for slot in self._slots()]
        slots = self.state.variables.trained
        named = [(slot, gradient) for slot, gradient in zip(slots, gradients, strict=True) if gradient is not None]
        contents = [self.backend.to_host(gradient) for _, gradient in named]
        names = ("grad/" + slot.name.partition("/")[2] for slot, _ in named)
        record = self.journal.begin_step(Payload.of(zip(names, contents, strict=True)))
        body = self._body("gradients", self.state.fingerprint.kind)
        forms = {slot.name: form for slot, gradient in named if (form := self.backend.form_of(gradient)) is not None}
        if forms:
            body["forms"] = forms
        self.backend.forget()
        start = time.perf_counter()
        after = self.backend.apply(gradients, updated)
        self.journal.observe_step(time.perf_counter() - start)
        if self._before:
            after = self._rehearse(gradients, after)
        if self._log_is_weights():
            if record is not None:
                record.abort()
            self.end_step()
            return
        body["hyper"] = self._rates(after)
        self.journal.commit_step(record, body, self.state.fingerprint.digests(after, self.journal.step + 1).tobytes())
        self._hold([*after, *self._frozen])
        self._after_step()

    def _log_is_weights(self) -> bool:
        return self.state.log == "weights"

    def end_step(self) -> None:
        """Log what a whole step has changed."""
        if self.state.variables.has_grown():
            self.state.variables.refresh()
        values = self._updated_values()
        tensors = self._changed(values)
        body = self._body("weights", "full")
        body["hyper"] = self._rates(values)
        digests = self.state.fingerprint.of_digests([*self._hashes.values()]).tobytes()
        self.journal.append_step(Payload.of(tensors), body, digests)
        self._hold(values)
        self._after_step()

    def _body(self, record: str, fingerprint: str) -> dict[str, Any]:
        body: dict[str, Any] = {"record": record, "fingerprint": fingerprint}
        if self.backend.is_eager:
            now = plain_attributes(self.state.variables.optimizers)
            if now != self.state.optimizer_attributes:
                self.state.optimizer_attributes = now
                body["attributes"] = now
        return body

    def _rates(self, values: list[Values]) -> list[dict[str, float]]:
        """The learning rates that are plain numbers, for `tranlogs log`; redo has them from the log of writes."""
        rates = [private.learning_rate_of(optimizer) for optimizer in self.state.variables.optimizers.values()]
        places = {id(slot.variable): i for i, slot in enumerate(self._slots())}
        return [{"lr": float(values[places[id(rate)]])} for rate in rates if id(rate) in places]

    def _after_step(self) -> None:
        self.steps_since_boundary += 1
        self.state.fingerprint.fit_budget(time.perf_counter() - self._began)

    def _slots(self) -> list[Slot]:
        return self.state.variables.changed_by(self.state.log)

    def _updated_values(self) -> list[Values]:
        return self.backend.values_of([slot.variable for slot in self._slots()])

    # Writes that no step made.

    def note_unit(self) -> Look:
        """At a boundary: log what was written behind the last step, and by none."""
        if self.state.variables.has_grown():
            self.state.variables.refresh()
        look = self.state.look()
        self._note_writes(look.watched)
        return look

    def _note_writes(self, values: list[Values] | None) -> None:
        """Log an after-image of whatever changed since the last look and not by a step; `values` of what is watched."""
        slots = self._watched()
        variables = [slot.variable for slot in slots]
        changed = self.backend.changed(variables, values)
        if changed and self._log_is_weights():
            self._append_image(self._changed(self._updated_values()))
        elif changed:
            read = self.backend.values_of([variables[i] for i in changed]) if values is None else [values[i] for i in changed]
            self._append_image([(slots[i].name, to_array(value)) for i, value in zip(changed, read, strict=True)])
        if changed or values is not None:
            self._hold(values)

    def _append_image(self, tensors: list[Tensor]) -> None:
        if tensors and not self.journal.is_suspended:  # else a checkpoint will hold it all
            self.journal.append_image(Payload.of(tensors), {})
            self.steps_since_boundary += 1

    def written(self) -> list[str]:
        """Names of what was written since `remember`."""
        if self._log_is_weights():
            return [name for name, value in self._hashed(self._updated_values()).items() if self._hashes.get(name) != value]
        slots = self._watched()
        return [slots[i].name for i in self.backend.changed([slot.variable for slot in slots])]

    def _watched(self) -> list[Slot]:
        return self.state.variables.watched_by(self.state.log)

    def _watched_values(self) -> list[Values] | None:
        return self.backend.values_of([slot.variable for slot in self._watched()]) if self.backend.watches_values else None

    def _hold(self, values: list[Values] | None) -> None:
        """What is watched is as the log has it."""
        self.backend.remember([slot.variable for slot in self._watched()], values)
        self._frozen = [] if values is None else values[len(self._slots()) :]

    def _changed(self, values: list[Values]) -> list[Tensor]:
        """After-images of all variables whose bytes are not those that the log has."""
        slots, known = self._slots(), self._hashes
        self._hashes = self._hashed(values)
        return [(slot.name, to_array(value)) for slot, value in zip(slots, values, strict=True)
                if known.get(slot.name) != self._hashes[slot.name]]  # fmt: skip

    def _hashed(self, values: list[Values]) -> dict[str, int]:
        return {slot.name: digest(value) for slot, value in zip(self._slots(), values, strict=True)}

    # The first steps are taken twice.

    def _find_inner_writes(self) -> None:
        """Whether the train step itself wrote to what the update changes: looked for at each step where that costs nothing,
        else now and then."""
        slots, step = self._slots(), self.journal.step
        if self._before:
            now = self._updated_values()
            written = [slot.name for slot, a, b in zip(slots, self._before, now, strict=True) if not same_bits(a, b)]
        elif self.backend.sees_inner_writes and (not self.backend.watches_values or step % _LOOK_INSIDE == 0 or step in _LOOKS):
            changed = self.backend.changed([slot.variable for slot in self._watched()], self._watched_values())
            written = [slots[i].name for i in changed if i < len(slots)]
        else:
            return
        if written:
            self._before = []
            self._doubt(f"train_step writes {written[0]} besides the optimizer's update")

    def _rehearse(self, gradients: Gradients, after: list[Values]) -> list[Values]:
        """Take the step again from the state before it: the same gradients must give the same bits."""
        slots = self._slots()
        wanted = [value.copy() for value in after]
        self._set(self._before)
        again = self.backend.apply(gradients, [slot.variable for slot in slots])
        if not all(map(same_bits, wanted, again)):
            first = next(slot.name for slot, a, b in zip(slots, wanted, again, strict=True) if not same_bits(a, b))
            self._set(wanted)
            self._doubt(f"the same gradients gave another {first} when the update was taken again")
        self._before = []
        return again

    def _find_other_schedules(self) -> None:
        """Whether somebody has given an optimizer another learning-rate schedule, which no log of gradients tells."""
        rates = [private.learning_rate_of(optimizer) for optimizer in self.state.variables.optimizers.values()]
        if len(self._schedules) == len(rates) and any(a is not b for a, b in zip(self._schedules, rates)):
            self._doubt("the optimizer was given another learning-rate schedule while training")
        self._schedules = rates

    def _set(self, values: list[Values]) -> None:
        for slot, value in zip(self._slots(), values, strict=True):
            self.backend.assign(slot.variable, value)

    def _doubt(self, why: str) -> None:
        self._is_rehearsed = True
        self._give_up(why)
