"""One `model.fit` of a run: where it enters the data, its boundaries between batches, and its end."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Generator
from typing import Any

from tranlogs.base.notes import Note
from tranlogs.training import Framework, LiveReport, Parts, Recovered, RecoveryReport, Restarts, Rung

from .. import keras_internals
from ..backends import make_backend
from ..data.cursor import Cursor, Position
from ..data.given_data import check_kind, describe_data, make_source, other_data
from ..run.boundaries import RNG, Boundaries, last_scalars
from ..run.recovery import Recovery, UnitRecheck
from ..run.run_parts import NewestCheckpoint, find_newest_checkpoint, open_resources, report_start
from ..settings import Settings
from ..state import rng
from ..state.callbacks import CallbackStates
from ..state.script_values import read_array, version_of
from ..state.state import found_under
from .fit_setup import LateOptimizers, backend_with_steps, build_as_recorded, build_for_fit, make_parts
from .identity import EarlierFits, describe_identity, process_fits, require_same_fit

_log = logging.getLogger("tranlogs")
_KEEP = "keep it as an attribute of a callback of this fit"
_CAUSES = {  # of a difference between a unit that is computed again and its record
    "gradients": "The fit had other data or another state (a counter or a random generator that the data or a callback keep "
    f"in a variable of the script): {_KEEP}",
    "weights": f"Something besides the optimizer sets it, such as a callback, by what starts anew: {_KEEP}",
    "settings": f"The script sets it from something that starts anew: {_KEEP}",
    "state": f"It depends on something that starts anew with the process: {_KEEP}",
    "order": f"A callback, or the data, decide by something that starts anew: {_KEEP}",
}

_DRAWN = Note(
    "not-recovered",
    "an earlier fit, finished before the crash, has drawn from the same Python generator. In this process it has not, so "
    "this fit sees other batches than it would have",
    "Make a generator for each fit",
)

_SAME_KIND = "Give fit the same kind of data, and TranLogsCallback the same data_order, as the run had"
_VALIDATION = Note(
    "not-recovered",
    "validation takes its batches from a Python generator, which begins anew after a resume: validation metrics, and callbacks "
    "that use them, may differ",
    "Give arrays, a PyDataset or a tf.data.Dataset",
)


_passed_over: weakref.WeakSet[Generator[Any, Any, Any]] = weakref.WeakSet()  # data of fits that trained nothing
CALLBACK = "callback."  # names of a boundary's parts for callbacks begin with it
_HOST_RNG = (f"{RNG}python", f"{RNG}numpy", f"{RNG}torch")  # parts of a boundary
_LEARNED = ("source.draws", "source.draws_own")  # each process finds out for itself whether batches draw random numbers


class _StartingEpoch(int):
    """The epoch at which `fit` begins. Keras takes `initial_epoch` of the script in place of a false one, such as epoch 0."""

    def __bool__(self) -> bool:
        return True


class FitRun:
    """One `fit` of a model, logged.

    `place` returns the settings, with the run's folder, for a fit with the given identity. `number` counts the fits of the
    callback, and `rung` serves all fits of the process.

    Attributes:
        model: that is being fitted.
        settings: of the run.
        number: of this fit in the run, from 0.
        is_skipped: whether the run is in a later fit than this one, so that nothing is trained here.
        has_end: whether model and callbacks of a skipped fit have the state with which that fit ended.
        parts: of the run.
        cursor: the loop over batches.
    """

    def __init__(
        self,
        model: Any,
        place: Callable[[dict[str, Any]], Settings],
        number: int,
        callbacks: list[Any],
        rung: Rung,
    ) -> None:
        self.model = model
        self._iterator, _, self._epochs = keras_internals.find_fit(model)
        backend = make_backend()
        self.is_skipped = self.has_end = False
        self._end: dict[str, Any] = {}  # the boundary at which a skipped fit ended
        self._is_waiting = False  # for the loop over batches in which the run stood
        self._is_end = True  # whether the present boundary is the end of an epoch or of the fit
        self._has_begun = False  # whether the first boundary of a new fit was written
        self._before: NewestCheckpoint | None = None  # where the fit before this one ended, if this one begins
        build_for_fit(model, backend, self._iterator)
        backend = backend_with_steps(model, backend)
        identity = describe_identity(model, self._iterator, callbacks)
        self.settings = settings = place(identity)
        report = LiveReport(settings.run)
        self.number = max(number, process_fits.count(settings.run, model))
        report.current = process_fits.find_report(settings.run)  # a recovery of this fit replaces it
        data = getattr(self._iterator.data_adapter, "py_dataset", None)
        framework = Framework(
            read_array,
            lambda: [*callbacks, model.optimizer, data],
            variable="fit",
            thing="fit",
            read_version=version_of(lambda: [*model.variables, *(one for kept in callbacks for one in vars(kept).values())]),
        )
        self._restarts = Restarts(report, framework)
        self._restarts.note_start()
        resources = open_resources(settings, model)
        try:
            newest = find_newest_checkpoint(resources)
            newest = newest and newest.at_end(resources)  # a fit may have begun without a checkpoint
            continues = newest is not None and newest.boundary["position"]["fit"] == self.number
            recorded = newest.meta if newest is not None and continues else None
            if recorded is not None:
                build_as_recorded(model, backend, recorded)
            late_optimizers = LateOptimizers(model)
            self.parts = make_parts(
                model,
                backend,
                settings,
                resources,
                report,
                recorded=recorded,
                rung=rung,
                expects=self._expects_step,
            )
            states = CallbackStates(callbacks, report.warn)
            ignored = {*_LEARNED, *(f"{CALLBACK}{path}" for path in states.of_each_process)}
            is_quiet = not settings.verbose
            recheck = UnitRecheck(self.parts, self._set_back, causes=_CAUSES, ignored=ignored, is_quiet=is_quiet)
            self._recovery = Recovery(self.parts, recheck)
            self._enter_run(newest, identity, states)
            self._boundaries = Boundaries(
                self.parts,
                self._recovery,
                read_place=self._read_place,
                read_for_checkpoint=lambda: self.cursor.source.read_for_checkpoint(),
                find_late=late_optimizers.find_built,
            )
            if self.is_complete and not self.is_skipped:
                self._boundaries.keep_end()
            if not self.is_skipped:
                prints_report = settings.verbose and self._recovery.landed is not None and not self.is_complete
                self._restarts.open(self.number, is_logged=not prints_report)
            if self.is_new:
                report_start(self.parts, settings, ends=1)
        except BaseException:
            resources.close()
            raise

    @property
    def report(self) -> RecoveryReport:
        """The report of the recovery, updated while training continues."""
        return self.parts.report.current or RecoveryReport()

    def _enter_run(self, newest: NewestCheckpoint | None, identity: dict[str, Any], callbacks: CallbackStates) -> None:
        """Recover the run, or begin this fit of it, or find that the run is past this fit."""
        parts, settings, number = self.parts, self.settings, self.number
        earlier = EarlierFits(parts, settings.retention)
        before = newest.boundary if newest is not None else None
        seed = before["seed"] if before is not None else settings.seed_or_fresh()
        source = make_source(
            self._iterator,
            parts.backend,
            seed=seed,
            data_order=settings.data_order,
            doubt=parts.report.warn,
            strategy=parts.backend.strategy_of(self.model),
            reads_ahead=parts.backend.is_prefetching,
        )
        given, validation = keras_internals.data_of_fit(self.model)
        if isinstance(given, Generator) and given in _passed_over:
            parts.report.warn(_DRAWN, True)
            _passed_over.discard(given)
        if isinstance(validation, Generator):  # Keras opens all other kinds anew for each validation
            parts.report.warn(_VALIDATION, False)
        self._plan_looks(callbacks)
        data, position = describe_data(self._iterator.data_adapter, source), Position(fit=number)
        if newest is not None:
            self._recovery.changes, self._recovery.changed_rates = require_same_fit(
                parts, newest, identity, number, self._epochs, accepts_changes=settings.accepts_changes
            )
        held = -1 if before is None else before["position"]["fit"]
        if before is not None and held == number:
            check_kind(parts.run, before["data"], data, _SAME_KIND)
            for text in other_data(before["data"], data):
                parts.report.warn(Note("data-changed", text), True)
            earlier.read(before, keeps_checkpoints=True)
            is_open = not before["position"]["is_finished"] and not self._recovery.changes
            is_changed = bool(self._recovery.changes)
            self._recovery.recover(rechecks=settings.shared.rechecks and is_open, fit=number, compares=not is_changed)
            self._restarts.resume(self._recovery.body.get("restarts"))
            self._is_waiting = True
            if recheck_end := self._recovery.recheck.end:  # callbacks that the script has now, or had then, have no counterpart
                others = set(recheck_end["callbacks"]).symmetric_difference(callbacks.names)
                self._recovery.recheck.ignored.update({"callbacks", *(f"{CALLBACK}{name}" for name in others)})
            position = Position(**self._recovery.body["position"])
        elif before is not None and held > number:
            earlier.read(before, keeps_checkpoints=False)
            self.is_skipped = True
            self.has_end, self._end = earlier.restore_end(number)
        elif before is not None:
            assert newest is not None
            assert newest.end is not None
            self._before = newest
            position.total = earlier.begin_next(before, newest.end)
            self._recovery.recheck.take_over(earlier.deviation)
        self._constants = {"seed": seed, "data": data, "identity": identity, "callbacks": callbacks.names}
        self._callbacks, self._earlier = callbacks, earlier
        self.cursor = Cursor(
            self._iterator,
            source,
            position,
            on_enter=self._enter,
            on_opened=self._opened,
            on_empty=self._empty,
            on_passed=self.restore_siblings,
            on_boundary=self.boundary,
        )

    def _read_place(self, rng_now: dict[str, Any], parts: Parts) -> dict[str, Any]:
        """Return the fit's share of a boundary's body."""
        # An epoch that is resumed after its last batch takes no step, and reports the logs of the boundary there.
        has_logs = self.cursor.may_be_over and keras_internals.has_own_train_step(self.model)
        restarts = self._restarts.recorded
        return {
            "position": self.cursor.position.as_dict(),
            "has_stopped": parts.of("has_stopped", False),
            "logs": keras_internals.last_logs(self.model) if has_logs else parts.of("logs", None),
            **{name: parts.of(name, value) for name, value in self._constants.items()},
            "earlier": parts.of("earlier", self._earlier.entries),
            "source": parts.of("source", self.cursor.source.read(rng_now)),
            **parts.under(CALLBACK, self._callbacks.read(is_end=self._is_end)),
            **({} if restarts is None else {"restarts": restarts}),
        }

    def _write_callbacks(self, body: dict[str, Any], *, is_complete: bool = False, has_files: bool = True) -> None:
        """Set the other callbacks to what a boundary holds of them."""
        self._callbacks.write(found_under(CALLBACK, body), is_complete=is_complete, has_files=has_files)

    def _plan_looks(self, callbacks: CallbackStates) -> None:
        """Tell the capture where in an epoch callbacks may write."""
        steps, is_free = self.parts.steps, not self.parts.backend.watches_values
        steps.looks_before_steps = is_free or callbacks.write_before_batches
        steps.writes.looks_behind_steps = is_free or callbacks.write_after_batches

    # Where the fit begins.

    @property
    def starts_at(self) -> int | None:
        """The epoch at which `fit` has to begin; None for its own choice."""
        if self.is_complete:
            return self._epochs
        return None if self._recovery.landed is None else _StartingEpoch(self.cursor.position.epoch)

    @property
    def is_complete(self) -> bool:
        """True if nothing is left to train."""
        if self._recovery.landed is None:
            return self.is_skipped
        position = self.cursor.position
        return position.is_finished and (self._recovery.body["has_stopped"] or position.epoch >= self._epochs)

    @property
    def is_new(self) -> bool:
        """True if the fit begins at its first batch, without a recovery."""
        return self._recovery.landed is None and not self.is_skipped

    def install(self) -> None:
        """Stand between Keras and the model."""
        self.parts.backend.tap(self.model, self.parts.steps, splits=self.parts.state.splits)
        self.model._get_metrics_result_or_logs = self._epoch_logs

    def _epoch_logs(self, logs: Any) -> Any:
        """Return the logs of an epoch. One that is resumed after its last batch takes no step: its logs are the boundary's."""
        model = self.model
        if not logs and self._recovery.landed is not None:
            logs = self._recovery.body.pop("logs", None)
        return type(model)._get_metrics_result_or_logs(model, logs) if logs else model.get_metrics_result()

    def restore_siblings(self) -> None:
        """Set the other callbacks back, after their `on_train_begin` has reset them."""
        if self._recovery.landed is not None or self.is_skipped:
            self._write_callbacks(self._end or self._recovery.body, is_complete=self.is_complete)

    # Boundaries (called by the cursor).

    def _enter(self) -> bool:
        """Enter the loop over an epoch's batches; return True if it is the one in which the run stood."""
        if self._is_waiting:
            self._is_waiting = False
            self._come_back()
            return True
        self.cursor.source.refresh()
        if not self._has_begun and self._recovery.landed is None:
            self._has_begun = True
            self._boundaries.begin(self._before)
        else:
            self.boundary(is_epoch_end=True)
        return False

    def _come_back(self) -> None:
        """Undo what ran before this place in this process: it ran before this place in the run, too."""
        body, position, source, state = self._recovery.body, self.cursor.position, self.cursor.source, self.parts.state
        self._recovery.undo_writes()
        state.set_auxiliary(body)
        self._write_callbacks(body)
        source.write(body["source"])
        kept, taken = state.kept
        if (taken["fit"], taken["passes"]) == (position.fit, position.passes):
            source.write_from_checkpoint(kept, taken["seen"])
        rng.set_rng(found_under(RNG, body), self.parts.backend)
        position.is_finished = False
        self.parts.steps.remember()
        self._take_script_rates()

    def _set_back(self, found: Recovered) -> None:
        """Restore all state of the fit but the model and the iterator of data to the newest boundary."""
        body = self._recovery.body
        self._write_callbacks(body)
        rng.set_rng(found_under(RNG, body), self.parts.backend, but_python=not self.cursor.source.sets_rng)

    def _take_script_rates(self) -> None:
        """Go on with learning rates that the script has changed on purpose; the log takes them for a callback's writes."""
        rates = self._recovery.changed_rates
        for which, rate in rates.items():
            self.parts.variables.optimizers[which].learning_rate = rate
        if rates:
            self.parts.steps.note_unit(is_end=True)
        if self._recovery.changes:  # the next process of the changed script finds them recorded
            self.parts.steps.wants_checkpoint = True

    def _opened(self) -> None:
        if self.cursor.position.seen:
            states = found_under(RNG, self._recovery.body)
            rng.set_rng(states, self.parts.backend, but_python=not self.cursor.source.sets_rng)

    def _expects_step(self) -> bool:
        """Return True if a batch was handed out for the step. Else this fit has failed, and another one runs without us."""
        if self.cursor.take():
            return True
        _log.warning(
            "%s: a step is taken that no fit of this run asked for: the fit that was logged is over, or a callback trains by "
            "itself. The run is closed, and what follows is not logged",
            self.parts.run,
        )
        self.release()
        return False

    def _empty(self) -> bool:
        """Pretend a step where an epoch may be over and `fit` cannot do without a step; return True if one is pretended."""
        if self.parts.backend.needs_a_step:
            self.parts.backend.pass_over()
        return self.parts.backend.needs_a_step

    def boundary(self, *, is_epoch_end: bool = False) -> None:
        """Commit what came since the last boundary as one unit: the loop wants its next batch."""
        self._is_end = is_epoch_end
        if is_epoch_end:
            self._restarts.note_end(of_loop=False)
        self._restarts.look()
        if not self.cursor.source.sets_rng:  # threads have drawn ahead by an accidental number of batches
            self._recovery.recheck.ignored.update(_HOST_RNG)
        self._boundaries.commit(
            is_end=is_epoch_end,
            wants_checkpoint=is_epoch_end and self.settings.every_epoch,
            scalars=self._scalars() if is_epoch_end else None,
        )

    def _scalars(self) -> dict[str, float] | None:
        """Return the curves of the epoch that is over."""
        history = getattr(getattr(self.model, "history", None), "history", {})
        return last_scalars(history.items())

    # The end.

    def finish(self) -> None:
        """Commit the end of the fit, after the `on_train_end` of all other callbacks."""
        try:
            if self.is_skipped or (self.is_complete and self._is_waiting):
                self._finish_again()
            else:
                self._finish()
        finally:
            process_fits.note(self.parts.run, self.model, self.number + 1, self.parts.report.current)

    def _finish_again(self) -> None:
        """End a fit that was over before: what `on_train_end` has done, and what the script draws behind, is as it was then."""
        end = self._end or self._recovery.body
        self._write_callbacks(end, has_files=False)
        self._pass_data_over(end)
        if not self.is_skipped:
            rng.set_rng(found_under(RNG, self._recovery.body), self.parts.backend)

    def _pass_data_over(self, end: dict[str, Any]) -> None:
        """Leave the data of this fit as it has left them: a later fit may go on with the same data set."""
        kind = describe_data(self._iterator.data_adapter, self.cursor.source)["kind"]
        if "source" in end and end["data"]["kind"] == kind:  # else the user has accepted other data
            self.cursor.source.pass_over(end["source"])
        given, _ = keras_internals.data_of_fit(self.model)
        if isinstance(given, Generator):
            _passed_over.add(given)

    def _finish(self) -> None:
        position = self.cursor.position
        if self.cursor.is_amid and self.parts.steps.steps_since_boundary:  # a callback stopped training
            self.cursor.advance(self._iterator.steps_per_execution)
        has_stopped = bool(self.model.stop_training) and position.epoch + 1 < self._epochs
        position.epoch, position.batch, position.is_finished = position.epoch + 1, 0, True
        self.cursor.source.refresh()
        self._is_end = True
        self._restarts.note_end(of_loop=True)
        self._restarts.look()
        # Should more epochs follow, they begin with metrics of their own.
        self._boundaries.commit_end({"metrics": {}, "has_stopped": has_stopped}, self._scalars())
        self.parts.journal.note_finished("complete")

    def release(self) -> None:
        """Give model, epoch iterator and run back."""
        self._recovery.recheck.close()
        self.parts.steps.close()
        self.parts.backend.release()
        self.cursor.release()
        vars(self.model).pop("_get_metrics_result_or_logs", None)
        self.parts.resources.close()
