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
from tranlogs.types import Staged
from tranlogs.wal.entry_writer import Tensor

from . import private
from .adapt import Values, same_bits, to_array
from .backends import Gradients
from .fingerprint import digest
from .state import KerasState, plain_attributes
from .variables import Slot

_log = logging.getLogger("tranlogs")

_REHEARSALS = 2  # steps that are taken twice


class StepLog:
    """Watches a model's steps; see `backends.Watcher`.

    Args:
        state: of the run.
        journal: where records go.
        expects: whether a batch was handed out; asked once a batch.
        give_up: called with a reason where gradients turn out not to be enough: weights are logged from the next step on.

    Attributes:
        steps_since_boundary: steps and after-images.
    """

    def __init__(self, state: KerasState, journal: Journal, expects: Callable[[], bool],
                 give_up: Callable[[str], None]) -> None:  # fmt: skip
        self.state, self.backend, self.journal, self._give_up = state, state.backend, journal, give_up
        self._expects = expects
        self.steps_since_boundary = 0
        self._is_rehearsed = False
        self._before: list[Values] = []
        self._hashes: dict[str, int] = {}  # of what the log has, by name; weights only
        self._began = 0.0

    def remember(self) -> None:
        """All state is as the log has it."""
        if self.state.log == "weights":
            self._hashes = self._hashed()
        else:
            self.backend.remember([slot.variable for slot in self._slots()])

    # Steps (called by taps).

    def is_expected(self) -> bool:
        return self._expects()

    def begin_step(self) -> None:
        """Log what was written since the last step, and by none."""
        self._began = time.perf_counter()
        self.note_writes()
        if self.state.log == "gradients" and self.journal.step < _REHEARSALS and not self._is_rehearsed:
            self._before = [value.copy() for value in self._updated_values()]

    def take_gradients(self, gradients: Gradients) -> None:
        """Log the gradients, then apply them."""
        if self._before:
            self._find_inner_writes()
        if self._log_is_weights():  # as the first steps have shown
            self.backend.apply(gradients)
            self.end_step()
            return
        slots = self.state.variables.trained
        named = [(slot, gradient) for slot, gradient in zip(slots, gradients, strict=True) if gradient is not None]
        contents = [self.backend.to_host(gradient) for _, gradient in named]
        record = self.journal.begin_step(sum(content.nbytes for content in contents), 2 * len(contents))
        if record is not None:
            for (slot, _), content in zip(named, contents, strict=True):
                record = self.journal.add(record, "grad/" + slot.name.partition("/")[2], self._kept(content))
        body = self._body("gradients")
        forms = {slot.name: form for slot, gradient in named if (form := self.backend.form_of(gradient)) is not None}
        if forms:
            body["forms"] = forms
        self.backend.forget()
        start = time.perf_counter()
        self.backend.apply(gradients)
        after = self._updated_values()
        self.journal.observe_step(time.perf_counter() - start)
        if self._before:
            self._rehearse(gradients, after)
            after = self._updated_values()
        if self._log_is_weights():
            if record is not None:
                record.abort()
            self.end_step()
            return
        body["digests"] = self._digests(after)
        self.journal.commit_step(record, body)
        self._after_step(after)

    def _log_is_weights(self) -> bool:
        return self.state.log == "weights"

    def end_step(self) -> None:
        """Log what a whole step has changed."""
        if self.state.variables.has_grown():
            self.state.variables.refresh()
        body = self._body("weights")
        tensors = self._changed()
        body["digests"] = self._digests(self._updated_values())
        self.journal.append_step(tensors, body)
        self._after_step()

    def _body(self, record: str) -> dict[str, Any]:
        body: dict[str, Any] = {"record": record, "hyper": self._rates(), "fingerprint": self.state.fingerprint.kind}
        if self.backend.is_eager:
            now = plain_attributes(self.state.variables.optimizers)
            if now != self.state.optimizer_attributes:
                self.state.optimizer_attributes = now
                body["attributes"] = now
        return body

    def _rates(self) -> list[dict[str, float]]:
        """The learning rates that are plain numbers, for `tranlogs log`; redo has them from the log of writes."""
        rates = [private.learning_rate_of(optimizer) for optimizer in self.state.variables.optimizers.values()]
        values = self.backend.values_of([rate for rate in rates if hasattr(rate, "path")])
        return [{"lr": float(value)} for value in values]

    def _digests(self, values: list[Values]) -> bytes:
        return self.state.fingerprint.digests(values, self.journal.step + 1).tobytes()

    def _after_step(self, values: list[Values] | None = None) -> None:
        self.steps_since_boundary += 1
        if self.state.log == "gradients":
            self.backend.remember([slot.variable for slot in self._slots()], values)
        self.state.fingerprint.fit_budget(time.perf_counter() - self._began)

    def _slots(self) -> list[Slot]:
        return self.state.variables.changed_by(self.state.log)

    def _updated_values(self) -> list[Values]:
        return self.backend.values_of([slot.variable for slot in self._slots()])

    def _kept(self, content: Any) -> Any:
        """TensorFlow and JAX never write to a gradient again: a writer thread may hold it without a copy."""
        if self.backend.name == "torch" or self.journal.config.handover == "direct" or not hasattr(content, "data"):
            return content
        return Staged(content.dtype, content.shape, content.data, content.strides, content.is_tensor, arrived=_at_once)

    # Writes that no step made.

    def note_writes(self) -> None:
        """Log an after-image of whatever changed since the last look and not by a step."""
        if self.state.log == "weights":
            return  # the next record holds whatever has changed
        slots = self._slots()
        changed = self.backend.changed([slot.variable for slot in slots])
        if not changed:
            return
        if not self.journal.is_suspended:  # else a checkpoint will hold it all
            values = self.backend.values_of([slots[i].variable for i in changed])
            self.journal.append_image([(slots[i].name, to_array(v)) for i, v in zip(changed, values, strict=True)], {})
            self.steps_since_boundary += 1
        self.backend.remember([slot.variable for slot in slots])

    def written(self) -> list[str]:
        """Names of what was written since `remember`."""
        if self.state.log == "weights":
            return [name for name, value in self._hashed().items() if self._hashes.get(name) != value]
        slots = self._slots()
        return [slots[i].name for i in self.backend.changed([slot.variable for slot in slots])]

    def note_unit(self) -> None:
        """At a boundary: the same, and with weights logged whatever changed behind the last step."""
        if self.state.variables.has_grown():
            self.state.variables.refresh()
        if self.state.log == "gradients":
            self.note_writes()
        elif tensors := self._changed():
            self.journal.append_image(tensors, {})
            self.steps_since_boundary += 1

    def _changed(self) -> list[Tensor]:
        """After-images of all variables whose bytes are not those that the log has."""
        now = self._hashed()
        names = [name for name, value in now.items() if self._hashes.get(name) != value]
        self._hashes = now
        slots = self.state.variables.by_name
        values = self.backend.values_of([slots[name].variable for name in names])
        return [(name, to_array(value)) for name, value in zip(names, values, strict=True)]

    def _hashed(self) -> dict[str, int]:
        slots = self.state.variables.everything_but_metrics
        values = self.backend.values_of([slot.variable for slot in slots])
        return {slot.name: digest(value) for slot, value in zip(slots, values, strict=True)}

    # The first steps are taken twice.

    def _find_inner_writes(self) -> None:
        """Whether the train step itself wrote to what the update changes."""
        slots, now = self._slots(), self._updated_values()
        written = [slot.name for slot, a, b in zip(slots, self._before, now, strict=True) if not same_bits(a, b)]
        if written:
            self._before = []
            self._doubt(f"train_step writes {written[0]} besides the optimizer's update")

    def _rehearse(self, gradients: Gradients, after: list[Values]) -> None:
        """Take the step again from the state before it: the same gradients must give the same bits."""
        slots = self._slots()
        wanted = [value.copy() for value in after]
        self._set(self._before)
        self.backend.apply(gradients)
        again = self._updated_values()
        if not all(map(same_bits, wanted, again)):
            first = next(slot.name for slot, a, b in zip(slots, wanted, again, strict=True) if not same_bits(a, b))
            self._set(wanted)
            self._doubt(f"the same gradients gave another {first} when the update was taken again")
        self._before = []

    def _set(self, values: list[Values]) -> None:
        for slot, value in zip(self._slots(), values, strict=True):
            self.backend.assign(slot.variable, value)

    def _doubt(self, why: str) -> None:
        self._is_rehearsed = True
        self._give_up(why)


def _at_once() -> None:
    """The content is there already."""
