"""What is logged of each step.

Gradients: what enters the outermost `optimizer.apply`, from which the same `apply` redoes the step. Weights: every variable
whose bytes the step has changed. What callbacks write between steps is found by `watched_writes.py`.
Some steps of a gradient log are taken twice, to see that gradients are all that an update consumes: the first in two calls,
the others in one call where the backend can.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tranlogs.base.errors import UsageError
from tranlogs.base.notes import Note
from tranlogs.base.types import Bytes, SparseArray, TensorSpec
from tranlogs.records import Layout, Payload, SparseForm
from tranlogs.training import GradientLayout, Journal, ReplayCheck, Rung, StepRecorder

from ..backends import Backend, Gradients
from ..backends.arrays import Values
from ..state.state import KerasState
from ..state.variables import Look, Plan, Slot
from .watched_writes import OptimizerChanges, RepeatedUpdate, WatchedWrites

_log = logging.getLogger("tranlogs")


_LOOKS, _LOOK_INSIDE = {4, 8, 16, 32}, 64  # steps, and every so many, in which writes of the train step are looked for


class StepCapture:
    """Watches a model's steps, as a tap calls it.

    A step reaches it in several calls (before, gradients, after, boundary), and what one call has read is not read again by the
    next. It changes from gradients to weights where gradients are not enough. `can_change` is false if a train step of the
    user's own is split: its update would then happen in another order. `expects` tells whether a batch was handed out.

    Attributes:
        rung: tells whether steps are logged with their tensors; else they are only counted.
        writes: the search for writes that no step made.
        looks_before_steps: whether anything may write between a boundary and the step after it.
        wants_checkpoint: whether a checkpoint is taken at the next boundary.
    """

    def __init__(
        self,
        run: Path,
        state: KerasState,
        journal: Journal,
        rung: Rung,
        doubt: Callable[[Note], None],
        *,
        expects: Callable[[], bool] = lambda: True,
        can_change: bool = True,
    ) -> None:
        self.state, self.backend, self.journal, self.rung = state, state.backend, journal, rung
        self._run, self._doubt, self._expects, self._can_change = run, doubt, expects, can_change
        self.writes = WatchedWrites(state, journal, self._note_late_write)
        self.looks_before_steps = True
        self.wants_checkpoint = False
        self._steps = 0  # since the boundary
        self._images_before = 0  # after-images that were logged before the boundary
        self._repeated = RepeatedUpdate(state, self._apply, self.give_up_gradients)
        self._changes = OptimizerChanges(state)
        self._has_applied = False
        self._is_halved = False  # the present step is taken in two calls
        self._behind: Sequence[Values] | None = None  # what the last step left of variables that only a boundary holds
        self._recorder = StepRecorder(journal)
        self._taken: tuple[dict[str, Any], bytes] | None = None  # body and fingerprint of the last step, to be committed
        self._payloads: dict[str, tuple[Plan, GradientPayloads]] = {}  # by optimizer
        self._forms: dict[str, tuple[str, str]] = {}  # of the last payload, see `GradientPayloads`
        self._known_rates: list[dict[str, float]] = []
        self._began = 0.0
        self._has_named_random = False

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
        """Return True if a batch was handed out. If not, the fit has failed and another one runs: the tap is then removed."""
        return self._expects()

    def begin_step(self, watched: Sequence[Values] | None = None, *, can_repeat: bool = True) -> None:
        """Log what was written since the last step, and by none.

        `watched` are values of what may have been written, if they were just read. With `can_repeat`, this step may be
        taken twice, to check that gradients are all that an update consumes.
        """
        if not self.rung.logs_tensors:
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
            self.give_up_gradients("the optimizer was given another learning-rate schedule during training")
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
        """Return True if gradients and update must be two calls, because the state between them is read."""
        return self._is_halved or self._log_is_weights()

    def reads(self) -> Sequence[Any]:
        """Return the variables whose values a step in one call returns: the same object as long as they are the same."""
        return self.state.plan.reads

    def saw_random_operations(self, names: Sequence[str]) -> None:
        """Name random numbers of the train step that a resume does not repeat."""
        if not self._has_named_random:
            self._has_named_random = True
            self._doubt(
                Note(
                    "not-recovered",
                    f"the train step draws random numbers by tf.random ({', '.join(names)}), whose state nobody can read: they "
                    "are others after a resume",
                    "Draw them by keras.random with a keras.random.SeedGenerator",
                )
            )

    def drop_step(self) -> None:
        """Note that the step which `begin_step` announced was not taken, because the data are at their end."""
        self._repeated.forget()
        if self.state.log == "gradients" and self.rung.logs_tensors:
            self.remember()  # nothing has noted yet what was written before the step: the boundary logs it

    def take_gradients(self, gradients: Gradients) -> None:
        """Log the gradients, then apply them."""
        if not self.rung.logs_tensors:
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
        self._end_gradients(after)
        if self.backend.lends_gradients:  # until the boundary, callbacks have their turn
            self._recorder.wait()

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
        if not self.rung.logs_tensors:
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
        plan, known = self.state.plan, self._payloads.get(self.which)
        if known is None or known[0] is not plan:
            known = plan, GradientPayloads(self.state.variables.trained_of(self.which), self.backend)
            self._payloads[self.which] = known
        payload, self._forms = known[1].payload(gradients), known[1].forms
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
        if not self.rung.logs_tensors:
            self._count_step()
            return
        self._commit()
        if self.state.variables.has_grown():
            self.state.variables.refresh()
        values = self.writes.updated_values()
        tensors = self.writes.take_changed(values)
        body = self._body("weights", "full")
        body["hyper"] = self._rates(values)
        digests = np.array(self.writes.digests(), np.uint64).tobytes()
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

        `is_end`: of an epoch or a fit, where callbacks of all kinds have run.
        """
        if not self.rung.logs_tensors:
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

    # What is logged.

    def give_up_gradients(self, why: str) -> None:
        """Log weights from the next step on."""
        if not self._can_change:
            raise UsageError(
                f'{self._run}: log="gradients" cannot be right here: {why}, and that would happen in another order. '
                'Use log="weights" (or "auto"), in a new run folder'
            )
        _log.warning("%s: weights are logged from step %d on, not gradients: %s", self._run, self.journal.step + 1, why)
        self.log_weights()
        self.wants_checkpoint = True

    def log_weights(self) -> None:
        """Log the variables that each step has changed."""
        self.state.log = "weights"
        self.state.variables.is_whole = True
        self.state.variables.refresh()

    def _note_late_write(self, name: str) -> None:
        """Report a write that may have been made some batches before it was found: the log has it, but not in its place."""
        _log.warning(
            "%s: %s was written between steps by something other than a callback of this fit, for the first time after many "
            "batches. A checkpoint is taken, and writes are looked for after each batch from here on",
            self._run,
            name,
        )
        self.wants_checkpoint = True

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
            self.give_up_gradients(f"train_step writes {written[0]} besides the optimizer's update")

    def _is_inner_look(self) -> bool:
        return self.journal.step in _LOOKS or self.journal.step % _LOOK_INSIDE == 0


class GradientPayloads:
    """Makes payloads of the gradients of a fixed list of variables.

    Attributes:
        forms: of the last payload: what it does not tell of gradients that are sparse (`Backend.form_of`), by variable.
    """

    def __init__(self, slots: Sequence[Slot], backend: Backend) -> None:
        self._backend = backend
        self._slots = list(slots)
        self._names = ["grad/" + slot.name.partition("/")[2] for slot in slots]
        self.forms: dict[str, tuple[str, str]] = {}
        self._forms: list[Any] | None = None  # what the layout was made for
        self._layout = Layout(())
        self._small: list[int] = []  # which gradients, in the order of the layout
        self._large: list[int] = []
        self._absent: frozenset[int] = frozenset()

    def payload(self, gradients: Gradients) -> Payload:
        """The payload of one step."""
        self.forms = {}
        forms = self._backend.forms_of(gradients)
        if forms is None:
            return self._with_sparse(gradients)
        if forms != self._forms:
            self._lay_out(gradients, forms)
        buffers = self._backend.bytes_of([gradients[i] for i in self._small])
        gathered = [np.concatenate(buffers)] if len(buffers) > 1 else buffers
        large = self._backend.bytes_of([gradients[i] for i in self._large])
        return Payload(self._layout, [*gathered, *large], self._absent)

    def _lay_out(self, gradients: Gradients, forms: list[Any]) -> None:
        specs = [
            self._spec(i, None if gradient is None else self._backend.host_of([gradient])[0].dtype.name)
            for i, gradient in enumerate(gradients)
        ]
        laid_out = GradientLayout(specs)
        self._layout, self._small, self._large = laid_out.layout, laid_out.small, laid_out.large
        self._absent = frozenset(at for at, i in enumerate(laid_out.order) if gradients[i] is None)
        self._forms = forms

    def _spec(self, i: int, dtype: str | None) -> TensorSpec:
        return TensorSpec(self._names[i], dtype or "uint8", (0,) if dtype is None else self._slots[i].shape)

    def _with_sparse(self, gradients: Gradients) -> Payload:
        """Where some are rows of a variable, whose number changes from step to step."""
        specs: list[TensorSpec] = []
        buffers: list[Bytes] = []
        absent: set[int] = set()
        sparse: dict[int, SparseForm] = {}
        for i, gradient in enumerate(gradients):
            content = None if gradient is None else self._backend.to_host(gradient)
            specs.append(self._spec(i, None if content is None else content.dtype))
            if (form := self._backend.form_of(gradient)) is not None:
                self.forms[self._slots[i].name] = form
            if content is None:
                absent.add(i)
            elif isinstance(content, SparseArray):
                sparse[i] = SparseForm(content.indices.shape[0], content.values.shape[0], content.is_coalesced)
                buffers += [content.indices.data, content.values.data]
            else:
                buffers.append(content.data)
        if self._forms != specs:
            self._layout, self._forms = Layout(specs), specs
        return Payload(self._layout, [buffer for buffer in buffers if buffer.nbytes], frozenset(absent), sparse)
