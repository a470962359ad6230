"""What is logged of each step, and the watch for writes that no step made.

Gradients: what enters the outermost `optimizer.apply`, from which the same `apply` redoes the step. Weights: every variable
whose bytes the step has changed. In both, what callbacks write between steps is noticed and logged as an after-image.
Some steps of a gradient log are taken twice, to see that gradients are all that an update consumes: the first in two calls,
the others in one call where the backend can.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from tranlogs.records import Payload, Tensor
from tranlogs.training import Journal, Place, ScanSchedule, StepRecorder

from ..backends import Gradients
from ..backends.arrays import Values, to_array
from ..state.fingerprint import digest
from ..state.plan import Look, Plan
from ..state.state import KerasState
from .gradient_payloads import GradientPayloads
from .optimizer_changes import OptimizerChanges
from .repeated_update import RepeatedUpdate

_log = logging.getLogger("tranlogs")

_BOUNDARY: Place = "at a boundary"
_LOOKS, _LOOK_INSIDE = {4, 8, 16, 32}, 64  # steps, and every so many, in which writes of the train step are looked for


class StepCapture:
    """Watches a model's steps; see `backends.Watcher`.

    A step reaches it in several calls (before, gradients, after, boundary), and what one call has read is not read again by the
    next, so it has many attributes.

    Args:
        state: of the run.
        journal: where records go.
        expects: whether a batch was handed out; asked once a batch.
        give_up: called with a reason where gradients turn out not to be enough: weights are logged from the next step on.
        on_late: called with the name of a variable whose write may have been there for some units before it was found.

    Attributes:
        steps_since_boundary: steps and after-images.
        looks_before_steps: whether anything may write between a boundary and the step behind it.
        looks_behind_steps: whether anything may write between a step and the boundary behind it.
    """

    def __init__(
        self,
        state: KerasState,
        journal: Journal,
        expects: Callable[[], bool],
        give_up: Callable[[str], None],
        on_late: Callable[[str], None],
        on_random: Callable[[Sequence[str]], None],
    ) -> None:
        self.state, self.backend, self.journal, self._give_up = state, state.backend, journal, give_up
        self._expects, self._on_late, self._on_random = expects, on_late, on_random
        self.steps_since_boundary = 0
        self.looks_before_steps = self.looks_behind_steps = True
        self._looks, self._look_seconds = ScanSchedule(), 0.0  # the fastest look so far
        self._repeated = RepeatedUpdate(state, self._apply, give_up)
        self._changes = OptimizerChanges(state)
        self._has_applied = False
        self._is_halved = False  # the present step is taken in two calls
        self._frozen: Sequence[Values] = []  # what was last read of watched variables that no step changes
        self._behind: Sequence[Values] | None = None  # what the last step left of variables that only a boundary holds
        self._recorder = StepRecorder(journal)
        self._taken: tuple[dict[str, Any], bytes] | None = None  # body and fingerprint of the last step, to be committed
        self._forms: dict[str, tuple[str, str]] = {}  # of the sparse gradients in the present record
        self._payloads: dict[str, tuple[Plan, GradientPayloads]] = {}  # by optimizer
        self._hashes: dict[str, int] = {}  # of what the log has, by name; weights only
        self._began = 0.0

    which = "optimizer"  # the optimizer of the present step

    def remember(self) -> None:
        """All state is as the log has it."""
        self._behind = None
        self._hold(self._watched_values())
        if self._log_is_weights():
            self._hashes = self._hashed(self._updated_values())

    def close(self) -> None:
        """The fit has ended, by an exception perhaps: a step that no boundary follows is not committed."""
        self._taken = None
        self._recorder.discard()

    # Steps (called by taps).

    def is_expected(self) -> bool:
        return self._expects()

    def begin_step(self, watched: Sequence[Values] | None = None, *, can_repeat: bool = True) -> None:
        """Log what was written since the last step, and by none.

        Args:
            watched: values of what may have been written, if they were just read.
            can_repeat: whether this step may be taken twice, to check that gradients are all that an update consumes.
        """
        self._commit()  # there is a step without a boundary behind it where an execution has several
        self._began = time.perf_counter()
        if self._log_is_weights():
            self.backend.forget()  # the step's own record will hold whatever has changed
            return
        step = self.journal.step
        if self.backend.is_eager and self._changes.has_other_schedule():
            self._give_up("the optimizer was given another learning-rate schedule during training")
        if self.looks_before_steps:
            self._note_writes(self._watched_values() if watched is None else watched)
        self._behind = None
        if can_repeat:
            self._repeated.begin(self._updated_values)
        looks_inside = self.backend.sees_inner_writes and (step == 0 or step in _LOOKS or step % _LOOK_INSIDE == 0)
        self._is_halved = looks_inside or self.state.is_halved or not self.backend.combines
        if not self._is_halved:
            self.backend.forget()

    def wants_halves(self) -> bool:
        return self._is_halved or self._log_is_weights()

    def reads(self) -> Sequence[Any]:
        return self.state.plan.reads

    def saw_random_operations(self, names: Sequence[str]) -> None:
        self._on_random(names)

    def drop_step(self) -> None:
        self._repeated.forget()
        self.remember()

    def take_gradients(self, gradients: Gradients) -> None:
        """Log the gradients, then apply them."""
        self._find_inner_writes()
        if self._log_is_weights():  # as the first steps have shown
            self._apply(gradients)
            self.end_step()
            return
        self.backend.forget()
        if self.backend.is_asynchronous and not self._is_inner_look():  # the update follows while the gradients are written
            after = self._apply(gradients)
            self._recorder.begin(self._payload(gradients))
        else:
            self._recorder.begin(self._payload(gradients))
            after = self._apply_timed(gradients)
        if self._repeated.is_due:
            after = self._repeated.repeat(gradients, after)
        if self.backend.lends_gradients:  # until the boundary, callbacks have their turn
            self._recorder.wait()
        self._end_gradients(after)

    def _apply_timed(self, gradients: Gradients) -> Sequence[Values]:
        start = time.perf_counter()
        after = self._apply(gradients)
        if self._has_applied:  # the first time, it is made
            self.journal.recovery_speed.observe_step(time.perf_counter() - start)
        self._has_applied = True
        return after

    def _apply(self, gradients: Gradients) -> Sequence[Values]:
        """Compute the update, and return what it has left."""
        return self.backend.apply(gradients, self.state.plan.updated_variables)

    def take_step(self, gradients: Gradients, values: Sequence[Values]) -> None:
        """Log the gradients of a step that was taken in one call, and what it has left."""
        count = len(self.state.plan.updated)
        self._recorder.begin(self._payload(gradients))
        after: Sequence[Values] = values[:count]
        behind: Sequence[Values] | None = values[count:]
        if self._repeated.is_due:
            after, behind = self._repeated.repeat_whole(gradients, after), None
        self._end_gradients(after)
        self._behind = behind

    def _payload(self, gradients: Gradients) -> Payload:
        plan = self.state.plan
        known = self._payloads.get(self.which)
        if known is None or known[0] is not plan:
            known = plan, GradientPayloads(self.state.variables.trained_of(self.which), self.backend)
            self._payloads[self.which] = known
        payload = known[1].payload(gradients)
        self._forms = known[1].forms
        self.state.fingerprint.note_logged(payload.nbytes)
        return payload

    def _end_gradients(self, after: Sequence[Values]) -> None:
        if self._log_is_weights():  # from this step on
            self._recorder.discard()
            self.end_step()
            return
        body = self._body("gradients", self.state.fingerprint.kind)
        if self._forms:
            body["forms"] = self._forms
        if self.state.is_halved:
            body["halved"] = True
        body["hyper"] = self._rates(after)
        self._taken = body, self.state.fingerprint.of(after, self.journal.step + 1).tobytes()
        self._hold(after if not len(self._frozen) else [*after, *self._frozen])
        self._after_step()

    def _commit(self) -> None:
        """Commit the record of the last step. It may be written until here, while other callbacks have their turn."""
        taken, self._taken = self._taken, None
        if taken is not None:
            self._recorder.commit(*taken)

    def _log_is_weights(self) -> bool:
        return self.state.log == "weights"

    def end_step(self) -> None:
        """Log what a whole step has changed."""
        self._commit()
        if self.state.variables.has_grown():
            self.state.variables.refresh()
        values = self._updated_values()
        tensors = self._changed(values)
        body = self._body("weights", "full")
        body["hyper"] = self._rates(values)
        digests = self.state.fingerprint.of_digests([*self._hashes.values()]).tobytes()
        self._recorder.log_image(Payload.of(tensors), body, digests)
        self._hold(values)
        self._after_step()

    def _body(self, record: str, fingerprint: str) -> dict[str, Any]:
        body: dict[str, Any] = {"record": record, "fingerprint": fingerprint}
        if self.backend.is_eager and (attributes := self._changes.read_attributes()) is not None:
            body["attributes"] = attributes
        return body

    def _rates(self, values: Sequence[Values]) -> list[dict[str, float]]:
        """The learning rates that are plain numbers, for `tranlogs log`; redo has them from the log of writes."""
        return [{"lr": float(values[place])} for place in self.state.plan.rates]

    def _after_step(self) -> None:
        self.steps_since_boundary += 1
        self.state.fingerprint.fit_budget(time.perf_counter() - self._began)

    def _updated_values(self) -> Sequence[Values]:
        return self.backend.values_of(self.state.plan.updated_variables)

    # Writes that no step made.

    def note_unit(self, *, is_end: bool = False) -> Look:
        """At a boundary: log what was written behind the last step, and by none.

        `is_end`: of an epoch or a fit, where callbacks of all kinds have had their turn.
        """
        self._commit()
        self._looks.count_unit()
        must_look = is_end or self.looks_behind_steps or not self.backend.watches_values or self._log_is_weights()
        if self._behind is not None and not must_look and not self._is_look_due():
            return self.state.plan.look_of(self._behind)
        start = time.perf_counter()
        if (is_end or self._log_is_weights()) and self.state.variables.has_grown():
            self.state.variables.refresh()
        look = self.state.look()
        written = self._note_writes(look.watched)
        if written and not must_look and self._looks.note_write(_BOUNDARY):
            self._on_late(written[0])
        seconds = time.perf_counter() - start
        self._look_seconds = min(self._look_seconds or seconds, seconds)
        return look

    def _is_look_due(self) -> bool:
        """Return True if variables are read at this boundary, though nothing is known to write to them."""
        return self._looks.is_full_scan_due(_BOUNDARY, self._look_seconds, self.state.fingerprint.step_seconds)

    def _note_writes(self, values: Sequence[Values] | None) -> list[str]:
        """Log an after-image of whatever changed since the last look and not by a step; `values` of what is watched."""
        plan = self.state.plan
        slots, variables = plan.watched, plan.watched_variables
        changed = self.backend.changed(variables, values)
        if changed and self._log_is_weights():
            self._append_image(self._changed(self._updated_values()))
        elif changed:
            read = self.backend.values_of([variables[i] for i in changed]) if values is None else [values[i] for i in changed]
            self._append_image([(slots[i].name, to_array(value)) for i, value in zip(changed, read, strict=True)])
        if changed or values is not None:
            self._hold(values)
        return [slots[i].name for i in changed]

    def _append_image(self, tensors: list[Tensor]) -> None:
        if tensors and not self.journal.is_suspended:  # else a checkpoint will hold it all
            self.journal.append_image(Payload.of(tensors), {})
            self.steps_since_boundary += 1

    def written(self) -> list[str]:
        """Names of what was written since `remember`."""
        if self._log_is_weights():
            return [name for name, value in self._hashed(self._updated_values()).items() if self._hashes.get(name) != value]
        plan = self.state.plan
        return [plan.watched[i].name for i in self.backend.changed(plan.watched_variables)]

    def _watched_values(self) -> Sequence[Values] | None:
        return self.backend.values_of(self.state.plan.watched_variables) if self.backend.watches_values else None

    def _hold(self, values: Sequence[Values] | None) -> None:
        """What is watched is as the log has it."""
        self.backend.remember(self.state.plan.watched_variables, values)
        self._frozen = [] if values is None else values[len(self.state.plan.updated) :]

    def _changed(self, values: Sequence[Values]) -> list[Tensor]:
        """After-images of all variables whose bytes are not those that the log has."""
        slots, known = self.state.plan.updated, self._hashes
        self._hashes = self._hashed(values)
        return [
            (slot.name, to_array(value))
            for slot, value in zip(slots, values, strict=True)
            if known.get(slot.name) != self._hashes[slot.name]
        ]

    def _hashed(self, values: Sequence[Values]) -> dict[str, int]:
        return {slot.name: digest(value) for slot, value in zip(self.state.plan.updated, values, strict=True)}

    def _find_inner_writes(self) -> None:
        """Whether the train step itself wrote to what the update changes: looked for at each step where that costs nothing,
        else now and then."""
        if self._log_is_weights():  # each record holds whatever a step has changed
            return
        if self._repeated.is_due:
            written = self._repeated.written_since(self._updated_values())
        elif self.backend.sees_inner_writes and (not self.backend.watches_values or self._is_inner_look()):
            changed = self.backend.changed(self.state.plan.watched_variables, self._watched_values())
            slots = self.state.plan.updated
            written = [slots[i].name for i in changed if i < len(slots)]
        else:
            return
        if written:
            self._repeated.forget()
            self._give_up(f"train_step writes {written[0]} besides the optimizer's update")

    def _is_inner_look(self) -> bool:
        return self.journal.step in _LOOKS or self.journal.step % _LOOK_INSIDE == 0
