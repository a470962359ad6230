"""One `model.fit` of a run: its journal, its state, its place in the data, and the boundaries between batches."""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tranlogs.base.config import fitting_segment_bytes
from tranlogs.base.errors import DataError, UsageError
from tranlogs.records import Checkpoint, Snapshot
from tranlogs.training import (
    LiveReport,
    Recovered,
    RecoveryReport,
    RunResources,
    describe_replacement,
    judge_exactness,
    make_report,
    recover,
)

from . import private
from .backends import arrays, make_backend
from .backends.arrays import Values
from .building import LateOptimizers, build_as_recorded, build_for_fit
from .capture.steps import StepCapture
from .data import Cursor, Position, describe_data, doubt_about_validation, make_source, other_data
from .identity import FinishedFits, changed_rates, check_identity, compare_identities, describe_identity
from .replay.replayable_state import ReplayableState
from .replay.untouched_state import UntouchedState
from .settings import Settings
from .state import environment, rng
from .state.architecture import compare_models, describe_model
from .state.boundary_parts import Parts, found_under
from .state.callbacks import CallbackStates
from .state.plan import Look
from .state.state import plain_attributes
from .state.variables import Variables

_log = logging.getLogger("tranlogs")

_RNG, _CALLBACK = "rng.", "callback."  # names of a boundary's parts begin with them
_finished = FinishedFits()
_SMALL_BYTES = 1 << 16  # variables that are kept aside between recovery and the first batch


class FitRun:
    """One `fit` of a model, logged.

    Args:
        model: that is being fitted.
        place: gives the settings, with the run's folder, for a fit that is described thus.
        number: of this fit, from 0, among those of the callback.
        callbacks: of the fit, but for ours.

    Attributes:
        is_skipped: the run is in a later fit than this one: nothing is trained here ...
        has_end: ... and the model has the weights with which that fit ended.
    """

    def __init__(self, model: Any, place: Callable[[dict[str, Any]], Settings], number: int, callbacks: list[Any]) -> None:
        self.model = model
        self._iterator, _, self._epochs = private.find_fit(model)
        self.backend = make_backend()
        self.is_skipped = self.has_end = False
        self._has_told: set[str] = set()
        self._environment: dict[str, Any] = {}  # filled before anything is written
        self._landed: Recovered | None = None
        self._generators, self._parts = rng.Generators(self.backend), Parts()
        self._is_end = True  # of an epoch or of the fit, at the present boundary
        self._is_waiting = False  # for the loop over batches in which the run stood
        self._is_new = True  # no boundary of this fit was written yet
        self._wants_checkpoint = self._has_reserved = False
        build_for_fit(model, self.backend, self._iterator)
        self._identity = describe_identity(model, self._iterator, callbacks)
        self.settings = settings = place(self._identity)
        self.run = settings.run
        self._live_report = LiveReport(self.run)
        self.number = max(number, _finished.count(self.run, model))
        step_bytes = sum(math.prod(v.shape) * 4 for v in model.trainable_variables)
        self._resources = RunResources(
            settings.shared,
            framework="keras",
            environment=self._environment,
            adapt=arrays.adapt,
            rank=settings.rank,
            segment_bytes=fitting_segment_bytes(step_bytes),
        )
        self.journal, self.spare = self._resources.journal, self._resources.spare
        try:
            self._put_together(self.number, callbacks)
        except BaseException:
            self._resources.close()
            raise

    @property
    def report(self) -> RecoveryReport:
        """What recovery found, and what became known since."""
        return self._live_report.current or RecoveryReport()

    def _put_together(self, number: int, callbacks: list[Any]) -> None:
        model, settings = self.model, self.settings
        newest = self._newest_meta()
        before = newest["boundary"] if newest is not None else None
        goes_on = before is not None and before["position"]["fit"] == number
        if newest is not None and goes_on:
            build_as_recorded(model, self.backend, newest)
        self._late_optimizers = LateOptimizers(model)
        log, why = settings.choose_log(model, self.backend)
        self._splits = log == "gradients"
        if newest is not None and goes_on:  # as the run has found out
            log, self._splits = newest["log"], newest["splits"]
        if why:
            _log.warning("%s: weights are logged, not gradients: %s", self.run, why)
        self.variables = Variables(model, self.backend, is_whole=log == "weights")
        self.state = ReplayableState(self.variables, self.backend, log, settings.shared.fingerprint)
        self.state.optimizer_attributes = plain_attributes(self.variables.optimizers)
        self.state.environment = environment.describe(model, self.backend, self.variables.optimizers)
        self._describe()
        self._environment.update(self.state.environment)
        self.siblings = CallbackStates(callbacks)
        self.seed = before["seed"] if before is not None else settings.seed_or_fresh()
        self.source = make_source(
            self._iterator,
            self.backend,
            seed=self.seed,
            data_order=settings.data_order,
            doubt=self._live_report.warn,
            strategy=self.backend.strategy_of(model),
        )
        validation_doubt = doubt_about_validation(*private.validation_of(model))
        if validation_doubt is not None:
            self._live_report.warn(validation_doubt, False)
        self.steps = StepCapture(self.state, self.journal, self._expects, self._give_up, self._found_late, self._found_random)
        self._plan_looks()
        self._data = describe_data(self._iterator.data_adapter, self.source)
        self._earlier: list[dict[str, Any]] = []  # histories of the run's fits before this one
        position = Position(fit=number)
        self._changes: list[str] = []  # of the script, since the run recorded it; accepted by the user
        self._rates: dict[str, float] = {}
        if newest is not None:
            self._demand_identity(newest["boundary"], number)
        if before is not None and goes_on:
            self._demand_data(before)
            self._earlier = before.get("earlier", [])
            self.settings.retention.steps.update(fit["step"] for fit in self._earlier)
            position = self._recover()
        elif before is not None and before["position"]["fit"] > number:
            self.is_skipped, self._earlier = True, before.get("earlier", [])
            self._bring_back_end(number)
        elif before is not None:
            position.total = self._begin_next()
        self.cursor = Cursor(
            self._iterator,
            self.source,
            position,
            on_enter=self._enter,
            on_opened=self._opened,
            on_empty=self._empty,
            on_passed=self.restore_siblings,
            on_boundary=self.boundary,
        )

    def _describe(self) -> None:
        self.state.about = {**describe_model(self.model, self.variables), "splits": self._splits}

    def _plan_looks(self) -> None:
        """Where in an epoch callbacks may write."""
        steps, siblings, is_free = self.steps, self.siblings, not self.backend.watches_values
        steps.looks_before_steps = is_free or siblings.write_before_batches
        steps.looks_behind_steps = is_free or siblings.write_after_batches

    def _demand_identity(self, before: dict[str, Any], number: int) -> None:
        """Refuse a fit that is not the one of this number that the run holds."""
        held = before["position"]["fit"]
        recorded = before["identity"] if held == number else before["earlier"][number]["identity"] if held > number else None
        changes = [] if recorded is None else compare_identities(recorded, self._identity)
        if not (changes and held == number and self._has_other_variables()):
            if not self.settings.accepts_changes:
                check_identity(self.run, changes)
            _finished.check(self.run, self.model)
        self._changes, self._rates = changes, {} if recorded is None else changed_rates(recorded, self._identity)

    def _has_other_variables(self) -> bool:
        """Return True if recovery will refuse the model, and name each variable."""
        assert self._newest is not None
        with Checkpoint(self._newest) as checkpoint:
            return bool(self.state.differences(checkpoint))

    def _demand_data(self, before: dict[str, Any]) -> None:
        """Whether a place in the run's data can be one in these; and what is not as it was."""
        recorded = before.get("data", self._data)
        if recorded["kind"] != self._data["kind"]:
            raise UsageError(
                f"{self.run}: the data were {recorded['kind']}, now they are {self._data['kind']}: a place in the one is none "
                "in the other. Give fit the same kind of data, and TranLogsCallback the same data_order, as the run had"
            )
        for text in other_data(recorded, self._data):
            self._live_report.warn(text, True)

    # Recovery.

    _newest: Path | None = None

    def _newest_meta(self) -> dict[str, Any] | None:
        """What the newest readable checkpoint tells; None in a fresh run."""
        for row in sorted(self.journal.catalog.checkpoints(), key=lambda row: row.sequence, reverse=True):
            path = self._newest = self.journal.paths.checkpoints / row.name
            try:
                return self._meta_of(path)
            except DataError as error:
                _log.debug("%s", error)
                if source := self.spare.replace(row.name):
                    self.journal.notes.append(describe_replacement(path, source))
                    return self._meta_of(path)
        return None

    @staticmethod
    def _meta_of(path: Path) -> dict[str, Any]:
        with Checkpoint(path) as checkpoint:
            found: dict[str, Any] = checkpoint.meta(make_array=arrays.from_array)
            return found

    def _recover(self) -> Position:
        start = time.monotonic()
        self.backend.prepare_apply(self.model)
        found = recover(self.journal.paths.folder, self.state, progress=self.settings.progress(), spare=self.spare)
        assert found is not None, "a run with a checkpoint holds something"
        self._resources.continue_from(found)
        if self.state.body["log"] == "weights" and self.state.log == "gradients":
            self._log_weights()
        self._landed, self._is_waiting = found, True
        self._aside = self._small_values()
        self.steps.remember()
        position = Position(**self.state.body["position"])
        self._live_report.current = self._told(found, position, time.monotonic() - start)
        return position

    def _begin_next(self) -> int:
        """A fit that follows another one of the run: what the script did to the model in between holds."""
        nothing = UntouchedState()
        found = recover(self.journal.paths.folder, nothing, spare=self.spare)
        assert found is not None, "a run with a checkpoint holds something"
        # The chain starts anew: nothing links this fit's log with the one before but the checkpoint at its beginning.
        position = replace(found.position, sequence=found.position.sequence + 1, chain=secrets.randbits(64))
        self.journal.continue_from(position, new_timeline=found.plan.has_later, damaged=found.damaged)
        end = {
            "history": nothing.body.get(f"{_CALLBACK}History", {}),
            "step": found.position.step,
            "identity": nothing.body["identity"],
        }
        self._earlier = [*nothing.body.get("earlier", []), end]
        self.settings.retention.steps.update(fit["step"] for fit in self._earlier)
        return int(nothing.body["position"]["total"])

    def _bring_back_end(self, number: int) -> None:
        """The weights with which a fit of the run ended: the script's code behind it works with them."""
        end = self._earlier[number]["step"] if number < len(self._earlier) else -1
        for row in [row for row in self.journal.catalog.checkpoints() if row.step == end]:
            try:
                with Checkpoint(self.journal.paths.checkpoints / row.name) as checkpoint:
                    meta = checkpoint.meta(make_array=arrays.from_array)
                    if meta["boundary"]["position"]["fit"] == number:
                        self.has_end = self.state.restore_weights(checkpoint, meta)
            except DataError as error:
                _log.warning("%s", error)

    def _told(self, found: Recovered, position: Position, seconds: float) -> RecoveryReport:
        exact, told = judge_exactness(found, self.state.fingerprint_kinds, compared="variables")
        self._environment.update(environment.describe(self.model, self.backend, self.variables.optimizers))
        compared = environment.compare(self.state.recorded_environment, self._environment)
        for text in compare_models(self.state.recorded_about, self.state.about):
            is_held = text.startswith("model.")  # settings of an optimizer: those of the run come back with it
            if not is_held:
                compared.append(f"the script has changed: {text}. What is trained from here on is another model")
            elif not any(note.startswith(text.partition(" was ")[0] + ":") for note in self.state.notes):
                holder = "the script's" if ".learning_rate was" in text and self._rates else "the run's own"
                self.state.notes.append(f"the script has changed: {text}; {holder} holds")
        compared += [
            f"the script has changed: {text}" for text in self._changes if text.startswith(("the layers", "the trial"))
        ]
        notes = [*self.journal.notes, *found.notes, *self.state.notes, *compared, *told, *self._live_report.texts]
        return make_report(
            found,
            exact=self._live_report.verdict(exact, compared),
            notes=notes,
            batch=position.total,
            epoch=position.epoch,
            seconds=seconds,
            timeline=self.journal.timeline,
        )

    # Where the fit begins.

    @property
    def starts_at(self) -> int | None:
        """The epoch at which `fit` has to begin; None for its own choice."""
        if self.is_complete:
            return self._epochs
        return None if self._landed is None else self.cursor.position.epoch

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to train."""
        if self._landed is None:
            return self.is_skipped
        position = self.cursor.position
        return position.is_finished and (self.state.body["has_stopped"] or position.epoch >= self._epochs)

    def install(self) -> None:
        """Stand between Keras and the model."""
        self.backend.tap(self.model, self.steps, splits=self._splits)
        self.model._get_metrics_result_or_logs = self._epoch_logs

    def _epoch_logs(self, logs: Any) -> Any:
        """An epoch that is resumed after its last batch takes no step: its logs are those of the boundary."""
        model = self.model
        if not logs and self._landed is not None:
            logs = self.state.body.pop("logs", None)
        return type(model)._get_metrics_result_or_logs(model, logs) if logs else model.get_metrics_result()

    def restore_siblings(self) -> None:
        """After the other callbacks' `on_train_begin`, which has reset them."""
        if self._landed is not None:
            self.siblings.write(found_under(_CALLBACK, self.state.body))
        elif self.is_skipped and self.cursor.position.fit < len(self._earlier):
            self.siblings.write({"History": self._earlier[self.cursor.position.fit]["history"]})

    # Boundaries (called by the cursor).

    def _enter(self) -> bool:
        """The loop over an epoch's batches begins; says whether it is the one in which the run stood."""
        if self._is_waiting:
            self._is_waiting = False
            self._come_back()
            return True
        self.source.refresh()
        if self._is_new and self._landed is None:
            self._is_new = False
            self.journal.start()
            body = self._read(self.state.look())
            if body is not None:
                self.journal.checkpoint(self._snapshot(body), wait=True)
            self.steps.remember()
        else:
            self.boundary(is_epoch_end=True)
        return False

    def _come_back(self) -> None:
        """Whatever ran before this place in this process ran before it in the run, too: undo it."""
        body, position = self.state.body, self.cursor.position
        self._undo_writes()
        self.state.set_auxiliary(body)
        self.siblings.write(found_under(_CALLBACK, body))
        self.source.write(body["source"])
        kept, taken = self.state.kept
        if (taken["fit"], taken["passes"]) == (position.fit, position.passes):
            self.source.write_from_checkpoint(kept, taken["seen"])
        rng.set_rng(found_under(_RNG, body), self.backend)
        position.is_finished = False
        self.steps.remember()
        self._take_script_rates()

    def _take_script_rates(self) -> None:
        """Go on with learning rates that the script has changed on purpose; the log takes them for a callback's writes."""
        for which, rate in self._rates.items():
            self.variables.optimizers[which].learning_rate = rate
        if self._rates:
            self.steps.note_unit(is_end=True)
        self._wants_checkpoint |= bool(self._changes)  # the next process of the changed script finds it recorded

    def _undo_writes(self) -> None:
        """Callbacks may have written in on_train_begin or on_epoch_begin (a learning rate); the log has what came of it."""
        for name, value in self._aside.items():
            self.backend.assign(self.variables.by_name[name].variable, value)
        if any(name not in self._aside for name in self.steps.written()):
            recover(self.journal.paths.folder, self.state)
        self._aside.clear()

    def _small_values(self) -> dict[str, Values]:
        slots = self.variables.everything_but_metrics
        values = self.backend.values_of([slot.variable for slot in slots])
        return {slot.name: value.copy() for slot, value in zip(slots, values, strict=True) if value.nbytes <= _SMALL_BYTES}

    def _opened(self) -> None:
        if self.cursor.position.seen:
            rng.set_rng(found_under(_RNG, self.state.body), self.backend, but_python=not self.source.sets_rng)

    def _expects(self) -> bool:
        """A step is to be taken. If no batch was handed out for it, this fit has failed, and another one runs without us."""
        if self.cursor.take():
            return True
        _log.warning(
            "%s: a step is taken that no fit of this run asked for: the fit that was logged is over, or a callback trains by "
            "itself. The run is closed, and what follows is not logged",
            self.run,
        )
        self.release()
        return False

    def _empty(self) -> bool:
        """The epoch may be over: some `fit`s cannot do without a step, so one is pretended, and callbacks set back after it."""
        if self.backend.needs_a_step:
            self.backend.pass_over()
        return self.backend.needs_a_step

    def boundary(self, *, is_epoch_end: bool = False) -> None:
        """The loop wants its next batch: what came since the last one commits as one unit."""
        self._is_end = is_epoch_end
        look = self.steps.note_unit(is_end=is_epoch_end)
        self.steps.steps_since_boundary = 0
        if not self._has_reserved and self.journal.step:
            self._has_reserved = True
            self.journal.checkpoints.expect_snapshot(self.state.nbytes())
        wanted = self._wants_checkpoint or (is_epoch_end and self.settings.every_epoch)
        self._wants_checkpoint = False
        body = self._read(look)
        if body is None:
            return
        late = self._late_optimizers.find_built()
        if late:
            self._describe()
        self.journal.boundary(
            body, lambda: self._snapshot(body), scalars=self._scalars(is_epoch_end), checkpoint=wanted or None
        )
        if late:  # the log alone cannot be redone by a process in which no step has built them
            self.journal.wait_checkpoint()
            self.journal.checkpoint(self._snapshot(body), wait=True)

    def _scalars(self, is_epoch_end: bool) -> dict[str, float] | None:
        """The curves of the epoch that is over, for `tranlogs log`."""
        history = getattr(getattr(self.model, "history", None), "history", {}) if is_epoch_end else {}
        found = {name: float(values[-1]) for name, values in history.items() if values and isinstance(values[-1], (int, float))}
        return found or None

    def _read(self, look: Look, *, has_stopped: bool = False) -> dict[str, Any] | None:
        """What a boundary commits; None, and logging suspends, where an object of the user's cannot be read."""
        try:
            return self._body(look, has_stopped)
        except Exception as error:  # whatever it is, training goes on
            self.journal.suspend(error)
            return None

    def _body(self, look: Look, has_stopped: bool) -> dict[str, Any]:
        now, parts = self._generators.read(look.seed), self._parts
        return {
            "position": self.cursor.position.as_dict(),
            "auxiliary": look.auxiliary,
            "metrics": look.metrics,
            "log": self.state.log,
            "has_stopped": has_stopped,
            "logs": private.last_logs(self.model) if private.has_own_train_step(self.model) else None,
            "seed": parts.of("seed", self.seed),
            "data": parts.of("data", self._data),
            "identity": parts.of("identity", self._identity),
            "earlier": parts.of("earlier", self._earlier),
            "source": parts.of("source", self.source.read(now)),
            **parts.under(_RNG, now),
            **parts.under(_CALLBACK, self._read_siblings()),
        }

    def _read_siblings(self) -> dict[str, dict[str, Any]]:
        found = self.siblings.read(is_end=self._is_end)
        for lost in sorted(self.siblings.lost - self._has_told):
            self._has_told.add(lost)
            self._live_report.warn(f"{lost} has changed, and is of a kind that cannot be stored: it is not brought back", False)
        return found

    def _snapshot(self, body: dict[str, Any]) -> Snapshot:
        return self.state.snapshot(body, self.source.read_for_checkpoint())

    def _give_up(self, why: str) -> None:
        """Gradients are not enough: weights from here on."""
        if private.has_own_train_step(self.model):
            raise UsageError(
                f'{self.run}: log="gradients" cannot be right here: {why}, and that would happen in another order. '
                'Use log="weights" (or "auto"), in a new run folder'
            )
        _log.warning("%s: weights are logged from step %d on, not gradients: %s", self.run, self.journal.step + 1, why)
        self._log_weights()
        self._wants_checkpoint = True

    def _found_random(self, names: Sequence[str]) -> None:
        """Report random numbers of the train step that do not come back."""
        text = (
            f"the train step draws random numbers by tf.random ({', '.join(names)}), whose state nobody can read: they are "
            "others after a resume. Draw them by keras.random with a keras.random.SeedGenerator"
        )
        if text not in self._live_report.texts:
            self._live_report.warn(text, False)

    def _found_late(self, name: str) -> None:
        """Report a write that may have been made some batches before it was found: the log has it, but not in its place."""
        _log.warning(
            "%s: %s was written between steps by something other than a callback of this fit, for the first time after many "
            "batches. A checkpoint is taken, and writes are looked for after each batch from here on",
            self.run,
            name,
        )
        self._wants_checkpoint = True

    def _log_weights(self) -> None:
        self.state.log = "weights"
        self.variables.is_whole = True
        self.variables.refresh()

    # The end.

    def finish(self) -> None:
        """The fit is over, all other callbacks have had their `on_train_end`."""
        _finished.note(self.run, self.model, self.number + 1)
        if self.is_skipped:
            return
        if self.is_complete and self._is_waiting:  # nothing was trained; what the script draws behind is what it drew then
            rng.set_rng(found_under(_RNG, self.state.body), self.backend)
            return
        position = self.cursor.position
        if self.cursor.is_amid and self.steps.steps_since_boundary:  # a callback stopped training
            self.cursor.advance(self._iterator.steps_per_execution)
        has_stopped = bool(self.model.stop_training) and position.epoch + 1 < self._epochs
        position.epoch, position.batch, position.is_finished = position.epoch + 1, 0, True
        self.source.refresh()
        self._is_end = True
        body = self._read(self.steps.note_unit(is_end=True), has_stopped=has_stopped)
        if body is None:
            return
        body["metrics"] = {}  # should more epochs follow, they begin with metrics of their own
        self.journal.wait_checkpoint()  # while one is being written no other is taken, and this one is needed
        self.journal.boundary(body, lambda: self._snapshot(body), scalars=self._scalars(True), checkpoint=True)

    def release(self) -> None:
        """Give model, epoch iterator and run back."""
        self.steps.close()
        self.backend.release()
        self.cursor.release()
        vars(self.model).pop("_get_metrics_result_or_logs", None)
        self._resources.close()
