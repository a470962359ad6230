"""What is logged of each step.

Gradients: what enters the outermost `optimizer.apply`, from which the same `apply` redoes the step. Weights: every variable
whose bytes the step has changed. What callbacks write between steps is found by `watched_writes.py`.
Some steps of a gradient log are taken twice, to see that gradients are all that an update consumes: the first in two calls,
the others in one call where the backend can.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from tranlogs.records import Payload
from tranlogs.training import Journal, ReplayCheck, Rung, StepRecorder

from ..backends import Gradients
from ..backends.arrays import Values
from ..state.state import KerasState
from ..state.variables import Look
from .gradient_payloads import PayloadsByOptimizer
from .watched_writes import OptimizerChanges, RepeatedUpdate, WatchedWrites

_LOOKS, _LOOK_INSIDE = {4, 8, 16, 32}, 64  # steps, and every so many, in which writes of the train step are looked for


class StepCapture:
    """Watches a model's steps; see `backends.Watcher`.

    A step reaches it in several calls (before, gradients, after, boundary), and what one call has read is not read again by the
    next.

    Args:
        state: of the run.
        journal: where records go.
        rung: tells whether steps are logged with their tensors; else they are only counted.
        expects: whether a batch was handed out; asked once a batch.
        give_up: called with a reason where gradients turn out not to be enough: weights are logged from the next step on.
        on_late: called with the name of a variable whose write may have been there for some units before it was found.
        on_random: called with the names of operations of the train step that draw random numbers.

    Attributes:
        writes: the search for writes that no step made.
        looks_before_steps: whether anything may write between a boundary and the step after it.
    """

    def __init__(
        self,
        state: KerasState,
        journal: Journal,
        rung: Rung,
        expects: Callable[[], bool],
        give_up: Callable[[str], None],
        on_late: Callable[[str], None],
        on_random: Callable[[Sequence[str]], None],
    ) -> None:
        self.state, self.backend, self.journal, self._give_up = state, state.backend, journal, give_up
        self._rung, self._expects, self._on_random = rung, expects, on_random
        self.writes = WatchedWrites(state, journal, on_late)
        self.looks_before_steps = True
        self._steps = 0  # since the boundary
        self._images_before = 0  # after-images that were logged before the boundary
        self._repeated = RepeatedUpdate(state, self._apply, give_up)
        self._changes = OptimizerChanges(state)
        self._has_applied = False
        self._is_halved = False  # the present step is taken in two calls
        self._behind: Sequence[Values] | None = None  # what the last step left of variables that only a boundary holds
        self._recorder = StepRecorder(journal)
        self._taken: tuple[dict[str, Any], bytes] | None = None  # body and fingerprint of the last step, to be committed
        self._payloads = PayloadsByOptimizer(state)
        self._known_rates: list[dict[str, float]] = []
        self._began = 0.0

    which = "optimizer"  # the optimizer of the present step

    @property
    def steps_since_boundary(self) -> int:
        """Number of steps and after-images of the running unit."""
        return self._steps + self.writes.images - self._images_before

    def begin_unit(self) -> None:
        """Count anew: the unit was committed."""
        self._steps, self._images_before = 0, self.writes.images

    def remember(self) -> None:
        """All state is as the log has it."""
        self._behind = None
        self.writes.remember()

    def close(self) -> None:
        """The fit has ended, by an exception perhaps: a step that no boundary follows is not committed."""
        self._taken = None
        self._recorder.discard()
        if self._log_is_weights() or self.state.is_halved:  # the next fit has to find that out for itself
            self.backend.check = ReplayCheck()

    # Steps (called by taps).

    def is_expected(self) -> bool:
        return self._expects()

    def begin_step(self, watched: Sequence[Values] | None = None, *, can_repeat: bool = True) -> None:
        """Log what was written since the last step, and by none.

        Args:
            watched: values of what may have been written, if they were just read.
            can_repeat: whether this step may be taken twice, to check that gradients are all that an update consumes.
        """
        if not self._rung.logs_tensors:
            self._is_halved = self.state.is_halved or not self.backend.combines
            self.backend.forget()
            return
        self._commit()  # where an execution has several steps, not each of them ends at a boundary
        self._began = time.perf_counter()
        if self._log_is_weights():
            self.backend.forget()  # the step's own record will hold whatever has changed
            return
        step = self.journal.step
        if self.backend.is_eager and self._changes.has_other_schedule():
            self._give_up("the optimizer was given another learning-rate schedule during training")
        if self.looks_before_steps:
            self.writes.log(self.writes.values() if watched is None else watched)
        self._behind = None
        if can_repeat:
            self._repeated.begin(self.writes.updated_values)
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
        if self.state.log == "gradients" and self._rung.logs_tensors:
            self.remember()  # nothing has noted yet what was written before the step: the boundary logs it

    def take_gradients(self, gradients: Gradients) -> None:
        """Log the gradients, then apply them."""
        if not self._rung.logs_tensors:
            self._apply(gradients)
            self._count_step()
            return
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
        if not self._rung.logs_tensors:
            self._count_step()
            return
        count = len(self.state.plan.updated)
        self._recorder.begin(self._payload(gradients))
        after: Sequence[Values] = values[:count]
        behind: Sequence[Values] | None = values[count:]
        if self._repeated.is_due:
            after, behind = self._repeated.repeat_whole(gradients, after), None
        self._end_gradients(after)
        self._behind = behind

    def _payload(self, gradients: Gradients) -> Payload:
        payload = self._payloads.payload(self.which, gradients)
        self.state.fingerprint.note_logged(payload.nbytes)
        return payload

    def _end_gradients(self, after: Sequence[Values]) -> None:
        if self._log_is_weights():  # from this step on
            self._recorder.discard()
            self.end_step()
            return
        body = self._body("gradients", self.state.fingerprint.kind)
        if self._payloads.forms:
            body["forms"] = self._payloads.forms
        if self.state.is_halved:
            body["halved"] = True
        body["hyper"] = self._rates(after)
        trained = after[: self.state.plan.fingerprinted]
        self._taken = body, self.state.fingerprint.of(trained, self.journal.step + 1).tobytes()
        frozen = self.writes.frozen
        self.writes.hold(after if not len(frozen) else [*after, *frozen])
        self._after_step()

    def _commit(self) -> None:
        """Commit the record of the last step. It may be written until here, while other callbacks have their turn."""
        taken, self._taken = self._taken, None
        if taken is not None:
            self._recorder.commit(*taken, is_frozen=True)

    def _log_is_weights(self) -> bool:
        return self.state.log == "weights"

    def end_step(self) -> None:
        """Log what a whole step has changed."""
        if not self._rung.logs_tensors:
            self._count_step()
            return
        self._commit()
        if self.state.variables.has_grown():
            self.state.variables.refresh()
        values = self.writes.updated_values()
        tensors = self.writes.take_changed(values)
        body = self._body("weights", "full")
        body["hyper"] = self._rates(values)
        digests = self.state.fingerprint.of_digests(self.writes.digests()).tobytes()
        self._recorder.log_image(Payload.of(tensors), body, digests)
        self.writes.hold(values)
        self._after_step()

    def _count_step(self) -> None:
        self.journal.count_step()
        self._steps += 1

    def _body(self, record: str, fingerprint: str) -> dict[str, Any]:
        body: dict[str, Any] = {"record": record, "fingerprint": fingerprint}
        if self.backend.is_eager and (attributes := self._changes.read_attributes()) is not None:
            body["attributes"] = attributes
        return body

    def _rates(self, values: Sequence[Values]) -> list[dict[str, float]]:
        """The learning rates that are plain numbers, for `tranlogs log`; redo has them from the log of writes.

        Rates that have not changed are the same object.
        """
        rates = [{"lr": float(values[place])} for place in self.state.plan.rates]
        if rates != self._known_rates:
            self._known_rates = rates
        return self._known_rates

    def _after_step(self) -> None:
        self._steps += 1
        self.state.fingerprint.fit_budget(time.perf_counter() - self._began)

    def note_unit(self, *, is_end: bool = False) -> Look:
        """Look at the variables at a boundary, and log what was written after the last step.

        Args:
            is_end: True at the end of an epoch or a fit, where callbacks of all kinds have run.
        """
        if not self._rung.logs_tensors:
            return self._look()
        self._commit()
        return self.writes.look(self._behind, is_end=is_end)

    def _look(self) -> Look:
        """Read what a boundary holds, and nothing else: what writes to other variables does so again after a crash."""
        self._behind = None
        if self.backend.is_eager:
            self._changes.read_attributes()  # for checkpoints
        if self.state.variables.has_grown():
            self.state.variables.refresh()
        plan = self.state.plan
        return plan.look_of(self.backend.values_of(plan.kept))

    # Writes of the train step.

    def _find_inner_writes(self) -> None:
        """Check whether the train step itself wrote to variables that the update changes: at each step where that costs
        nothing, and at some steps otherwise."""
        if self._log_is_weights():  # each record holds whatever a step has changed
            return
        if self._repeated.is_due:
            written = self._repeated.written_since(self.writes.updated_values())
        elif self.backend.sees_inner_writes and (not self.backend.watches_values or self._is_inner_look()):
            changed = self.backend.changed(self.state.plan.watched_variables, self.writes.values())
            slots = self.state.plan.updated
            written = [slots[i].name for i in changed if i < len(slots)]
        else:
            return
        if written:
            self._repeated.forget()
            self._give_up(f"train_step writes {written[0]} besides the optimizer's update")

    def _is_inner_look(self) -> bool:
        return self.journal.step in _LOOKS or self.journal.step % _LOOK_INSIDE == 0
