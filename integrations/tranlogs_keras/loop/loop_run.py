"""A run whose loop is the script's own: recovery, boundaries, and the place in the data."""

from __future__ import annotations

import logging
import math
import secrets
from typing import Any

from tranlogs.base.config import OUTSIDE_UNITS_MAX, fitting_segment_bytes
from tranlogs.base.errors import NotRecovered, UsageError
from tranlogs.training import (
    CHANGED_NOW,
    UNKNOWN_DATA,
    LiveReport,
    Recovered,
    RecoveryReport,
    Remembered,
    RunResources,
    ScalarHistory,
    TurnData,
    describe_moved,
    describe_not_computed,
    describe_script_change,
    path_of_remembered,
)
from tranlogs.training import LoopState as Namespace

from .. import keras_internals
from ..backends import arrays, make_backend
from ..backends.optimizer_tap import OptimizerTap
from ..data import Position, describe_data, other_data
from ..data.source import Source
from ..run.boundaries import RNG, Boundaries
from ..run.log_choice import LogChoice
from ..run.newest_checkpoint import find_newest_checkpoint
from ..run.recovery import Recovery
from ..run.run_parts import RunParts
from ..run.start_report import report_start
from ..run.unit_recheck import RecheckRules
from ..state import environment, rng
from ..state.architecture import describe_model
from ..state.boundary_parts import Parts, found_under
from ..state.state import plain_attributes
from .capture import LoopCapture, LoopState
from .loop_data import LoopData, make_loop_source
from .loop_values import LoopValues
from .members import LoopVariables, Members
from .script_changes import ScriptChanges
from .settings import LoopSettings
from .unkept_variables import make_unkept_variables
from .untracked import UntrackedVariables

_log = logging.getLogger("tranlogs")

_IMPLICIT = (
    "a step was taken outside of the loops of LoggedOptimizer: which data follow, and random numbers drawn since, are known to "
    "the script alone. Take batches from optimizer.epochs(...) or optimizer.batches(...)"
)
_UNKNOWN_ITERABLE = (
    "the data are an iterable of the script's own: what it draws from besides the global random generators, and what it keeps "
    "from one pass to the next, would not come back. Give a tf.data.Dataset, a DataLoader, a PyDataset, arrays or a list of "
    "batches; or declare by stateless=True that a pass depends on nothing but the global random generators"
)


class LoopRun:
    """A run, its optimizers and its loop in this process. `LoggedOptimizer` creates one; `add_optimizer` shares it.

    A loop of one's own may take steps before it is recovered, outside of all loops, and from data that were not declared. The
    class keeps count of these cases for the report, so it has many attributes.

    Args:
        settings: of the run.
        members: models and optimizers; more may be added until the run is recovered.

    Attributes:
        members: models, optimizers and what is tracked.
        report: report of the recovery, with what became known since.
        scalars: that the loop has logged.
        position: where the loop stands.
        is_looping: whether a loop of `LoggedOptimizer` runs.
        turns: what the data of the running loop come from, if it is one over `steps()` or over an iterable of the script's own.
        source: of the batches; None before the first loop over data.
        loop_end: "complete" if the last loop gave all that it had; else where it was left; empty if there was none.
        times: names of remembered attributes that are times which the script measures.
        was_set_back: whether the state was set back in the running loop, and its source of batches is to be opened again.
    """

    def __init__(self, settings: LoopSettings, members: Members) -> None:
        self.settings, self.members = settings, members
        self.report, self.scalars = LiveReport(settings.shared.run), ScalarHistory()
        self.position, self.is_looping = Position(), False
        self.source: Source | None = None
        self.turns: TurnData | None = None
        self.loop_end = ""
        self.was_set_back = False
        self._is_undeclared = False  # the data were not known before the crash
        self._data: dict[str, Any] | None = None
        self._environment: dict[str, Any] = {}
        self._doubts: list[str] = []  # that later processes have to report, too
        self._parts: RunParts | None = None
        self._loop_state: Namespace | None = None
        self.times: list[str] = []
        self._unkept = make_unkept_variables(self.report, members)
        self._is_waiting = False  # for the place at which the run stood
        self._changes: ScriptChanges | None = None  # made between recover() and the loop
        self._has_script_changes = False  # in the unit that is running
        self._is_outside = False  # a step of the running unit was taken outside of all loops
        self._outside_units = 0  # in a row
        step_bytes = sum(math.prod(v.shape) * 4 for v in members.trainable_variables)
        self.resources = RunResources(
            settings.shared,
            framework="keras",
            environment=self._environment,
            adapt=arrays.adapt,
            segment_bytes=fitting_segment_bytes(step_bytes),
        )

    @property
    def has_begun(self) -> bool:
        """Whether the run was recovered or begun in this process."""
        return self._parts is not None

    # Beginning.

    def recover(self) -> RecoveryReport:
        """Bring the run back to its newest boundary, or begin it."""
        settings, members, journal = self.settings, self.members, self.resources.journal
        if self._parts is not None:
            raise UsageError("recover() must come before the first loop and the first step, and only once")
        if journal.is_closed:
            raise UsageError(f"{settings.shared.run}: the run is closed. Make a new LoggedOptimizer to go on")
        members.build()
        backend, newest = make_backend(), find_newest_checkpoint(self.resources)
        log = newest.meta["log"] if newest is not None else settings.log
        variables = LoopVariables(members, backend, is_whole=log == "weights")
        state = LoopState(variables, backend, log, settings.shared.fingerprint)
        state.updates = {name: backend.updates_of(optimizer) for name, optimizer in members.optimizers.items()}
        state.optimizer_attributes = plain_attributes(variables.optimizers)
        state.environment = environment.describe(members, backend, variables.optimizers)
        state.about = {**describe_model(members, variables, members.models), "splits": True}
        self._environment.update(state.environment)
        form = LogChoice(settings.shared.run, state, journal, self.report, can_change=True)
        capture = LoopCapture(
            state, journal, self._before_step, form.give_up_gradients, form.note_late_write, self._note_random(form)
        )
        parts = RunParts(
            settings.shared.run, members, backend, state, capture, self.resources, self.report, self._environment, lambda: None
        )
        self._capture, self._untracked = capture, UntrackedVariables(backend)
        self._seed = newest.boundary["seed"] if newest is not None else self._choose_seed()
        # What a process declares or has found out of its loop and its data. Doubts are taken over from the record.
        ignored = {"turns", "doubts", "source.draws", "source.draws_own", *map(path_of_remembered, self.times)}
        refuted = [UNKNOWN_DATA, _UNKNOWN_ITERABLE]
        if self._loop_state is not None:  # how many turns are left of the script's own loop is known if the run keeps its state
            refuted.append(_IMPLICIT)
        rules = RecheckRules(self._set_back, refuted, ignored=ignored, times=self.times)
        self._recovery = Recovery(parts, form, rules)
        self._boundaries = Boundaries(
            parts,
            form,
            self._recovery,
            read_place=self._read_place,
            read_for_checkpoint=self._read_for_checkpoint,
            find_late=list,
            describe=lambda: None,
        )
        if newest is not None:
            self._unkept.note_start()
            self._unkept.watch()
            self._doubts = list(newest.boundary["doubts"])
            self._recovery.recover(rechecks=settings.shared.rechecks)
            self._land()
        else:
            self._boundaries.begin()
            report_start(parts, settings.shared, every_epoch=settings.every_epoch, retention=settings.shared.retention)
        self._parts = parts
        self._taps: list[OptimizerTap] = []
        for name, optimizer in members.optimizers.items():
            self._taps.append(backend.tap_optimizer(optimizer, name, capture, state.updates[name]))
        return self.report.current or RecoveryReport()

    def _choose_seed(self) -> int:
        if self.settings.seed is not None:
            return self.settings.seed
        known = keras_internals.get_random_seed()
        return int(known) if known is not None else secrets.randbits(62)

    def _note_random(self, form: LogChoice) -> Any:
        def note(names: Any) -> None:
            form.note_random_operations(names)
            lasting = [text for text in self.report.texts if text not in (UNKNOWN_DATA, _UNKNOWN_ITERABLE)]
            self._doubts = list(dict.fromkeys([*self._doubts, *lasting]))

        return note

    def _land(self) -> None:
        """Take over the place at which the run stood."""
        body, found = self._recovery.body, self._recovery.landed
        assert found is not None
        self.position = Position(**body["position"])
        self._doubts = list(dict.fromkeys([*body["doubts"], *self._recovery.recheck.end.get("doubts", ())]))
        self._is_waiting = bool(self.position.total or self.position.epoch or found.position.step)
        self.members.write_remembered(body["tracked"])
        self.scalars.unpack(self._recovery_scalars())
        self.scalars.extend(found.scalars)
        for text in self._doubts:
            self.report.warn(text, False)
        if body.get("turns") == "unknown":
            self._is_undeclared = True
            self.report.warn(UNKNOWN_DATA if body["data"] is None else _UNKNOWN_ITERABLE, False)

    def _recovery_scalars(self) -> dict[str, Any]:
        found: dict[str, Any] = self._recovery.kept[0].get("scalars", {})
        return found

    def remember(self, values: dict[str, Any]) -> Remembered:
        """Remember attributes of the loop's namespace."""
        if self._loop_state is None:
            self._loop_state = Namespace(LoopValues(), self._add_doubt)
        self._loop_state.add(values)
        self.members.remember(self._loop_state)
        return self._loop_state.namespace

    def begin(self) -> None:
        """Recover the run before a loop; if the script has done that, keep what it has set since."""
        if self._parts is None:
            self.recover()
        elif self._is_waiting:
            self._keep_script_changes(self._parts)

    def _keep_script_changes(self, parts: RunParts) -> None:
        """Go on at the newest boundary if the script has set something: with other values the newest unit is another one."""
        changes = ScriptChanges(parts, self.members, self._recovery.body["tracked"], self.times)
        if changes.has_writes:
            self._recovery.return_to_landing()
            changes.compare_variables()
        if not changes.texts:
            return
        self._changes = changes
        if self._recovery.abandon_recheck():
            self.position = Position(**self._recovery.body["position"])
            self.report.warn(describe_not_computed(CHANGED_NOW), False)
            if moved := changes.find_moved():
                self.report.warn(describe_moved(moved), False)
        for text in changes.texts:
            self.report.warn(describe_script_change(text), False)
        self._recovery.refresh_report()

    # The place in the data.

    def take_data(self, data: LoopData) -> Source:
        """Make the source of the batches, and compare the data with those of the run."""
        if data.is_of_script:
            self._note_data("stateless" if data.is_stateless else "unknown", _UNKNOWN_ITERABLE)
        if self._data is not None and self.source is not None:
            return self.source
        parts = self._begun_parts()
        self.source = source = make_loop_source(data, parts.backend, self._seed, self.report.warn)
        self._data = now = describe_data(data.data_adapter, source)
        recorded = self._recovery.body.get("data") if self._recovery.landed is not None else None
        if recorded is not None and recorded["kind"] != now["kind"]:
            raise UsageError(
                f"{parts.run}: the data were {recorded['kind']}, now they are {now['kind']}: a place in the one is none in the "
                "other. Give the loop the same kind of data as the run had"
            )
        for text in [] if recorded is None else other_data(recorded, now):
            self.report.warn(text, True)
        return source

    def come_back(self) -> bool:
        """Undo what code before the loop in which the run stood has written, but for what the script has set since `recover()`.

        Returns:
            False if the run does not stand anywhere.
        """
        if not self._is_waiting:
            return False
        self._is_waiting = False
        parts, body = self._begun_parts(), self._recovery.body
        self._recovery.undo_writes()
        parts.state.set_auxiliary(body)
        for name in self.members.write_tracked(body["tracked"]):
            self._add_doubt(
                f"{name!r} was tracked by the run or is tracked now, and not both, or it is of another kind: it begins anew. "
                f"Track the same objects under the same names as the run had"
            )
        if self.source is not None and body["source"]:
            self._write_source()
        self.set_random_states()
        parts.steps.remember()
        if self._changes is not None:
            self._changes.apply()
            self._has_script_changes = True
        return True

    def _write_source(self) -> None:
        source, kept, taken = self.source, *self._recovery.kept
        assert source is not None
        source.write(self._recovery.body["source"])
        if taken["passes"] == self.position.passes:
            source.write_from_checkpoint(kept, taken["seen"])

    def _set_back(self, found: Recovered) -> None:
        """Set what the loop keeps besides models and optimizers to what the newest boundary holds."""
        body = self._recovery.body
        self.members.write_tracked(body["tracked"])
        self.scalars.unpack(self._recovery_scalars())
        self.scalars.extend(found.scalars)
        if self.source is not None and body["source"] and self.position.as_dict() == body["position"]:
            self._write_source()
            self.was_set_back = True
        self.set_random_states()

    def set_random_states(self) -> None:
        """Set the random number generators to what they were where the run stood."""
        rng.set_rng(found_under(RNG, self._recovery.body), self._begun_parts().backend)

    def _begun_parts(self) -> RunParts:
        assert self._parts is not None
        return self._parts

    # Steps and boundaries.

    def _before_step(self) -> None:
        """A step is about to be taken."""
        if self.is_looping:
            return
        if self._is_waiting:
            self.come_back()
        if self._capture.steps_since_boundary and self._is_outside:
            self._commit_outside()
        self._is_outside = True

    def _commit_outside(self) -> None:
        """Commit a step that was taken outside of all loops. A script may take a few before its loop, so they warn later."""
        self._is_outside, self._outside_units = False, self._outside_units + 1
        if _IMPLICIT not in self._doubts:
            self._doubts.append(_IMPLICIT)
        if self._outside_units == OUTSIDE_UNITS_MAX:
            self.report.warn_of_script(_IMPLICIT)
        self._boundaries.commit(is_end=True)
        self._unkept.name()

    def boundary(self, *, is_epoch_end: bool = False) -> None:
        """Commit what came since the last boundary as one unit."""
        if self._capture.is_closed:
            raise UsageError(f"{self.settings.shared.run}: the run was closed inside its loop. Leave the loop before close()")
        self._is_outside, self._outside_units = False, 0
        if _IMPLICIT in self._doubts:
            self._doubts.remove(_IMPLICIT)
        self._capture.check_step()
        parts = self._begun_parts()
        known = [slot.variable for slot in [*parts.variables.everything_but_metrics, *parts.variables.metrics]]
        for path in self._untracked.find_changed([*known, keras_internals.global_seed_state()]):
            self._add_doubt(
                f"the loop writes {path}, which the run does not know: it is not brought back. Give what holds it (a metric, a "
                "seed generator, a model) to optimizer.track(name=...) before the loop"
            )
        noted = self.scalars.commit(parts.journal.step)
        wants = is_epoch_end and self.settings.every_epoch
        self.was_set_back = False
        is_logged = not parts.journal.is_rechecking
        self._boundaries.commit(is_end=True, wants_checkpoint=wants, scalars=noted or None)
        self._has_script_changes &= not is_logged
        self._unkept.name()

    def note_turns(self, *, stateless: bool) -> None:
        """Note that the loop takes turns without data, and whether it declares that these depend on nothing of its own."""
        self._note_data("stateless" if stateless else "unknown", UNKNOWN_DATA)

    def _note_data(self, turns: TurnData, reason: str) -> None:
        self.turns = turns
        is_told = reason in self.report.texts
        if turns == "unknown" and not is_told:
            self.report.warn(reason, False)
        elif turns == "stateless" and is_told and self._is_undeclared:
            self.report.dismiss(reason)
            self._recovery.refresh_report()

    def _add_doubt(self, text: str) -> None:
        if text not in self._doubts:
            self._doubts.append(text)
            self.report.warn(text, False)

    def _read_place(self, rng_now: dict[str, Any], parts: Parts) -> dict[str, Any]:
        return {
            "position": self.position.as_dict(),
            "has_stopped": False,
            "seed": parts.of("seed", self._seed),
            "data": parts.of("data", self._data),
            "source": parts.of("source", self.source.read(rng_now) if self.source is not None else None),
            "tracked": self.members.read_tracked(),
            "doubts": list(self._doubts),
            "turns": self.turns,
            **({"script_changes": True} if self._has_script_changes else {}),
        }

    def _read_for_checkpoint(self) -> dict[str, Any]:
        kept = self.source.read_for_checkpoint() if self.source is not None else {}
        return {**kept, "scalars": self.scalars.pack()}

    # The end.

    def close(self, *, is_orderly: bool) -> None:
        """Commit what is complete, seal the log, release the run."""
        if self.resources.journal.is_closed:
            return
        if self._parts is not None:
            if is_orderly and self._is_outside and not self.is_looping and self._capture.steps_since_boundary:
                self._commit_outside()
            elif self._capture.steps_since_boundary:
                _log.log(
                    logging.INFO if is_orderly else logging.WARNING,  # a loop that ends by `break` loses nothing
                    "%s: the loop was left in the middle of a batch (break, or an exception): the log ends at step %d, and "
                    "that batch is computed again when the run goes on",
                    self.settings.shared.run,
                    self.resources.journal.committed,
                )
            self._capture.is_closed = True
            self._capture.close()
            for tap in self._taps:
                tap.release()
            if is_orderly:
                self._recovery.recheck.note_end()
            self._recovery.recheck.close()
            if is_orderly and not self.is_looping and not self._recovery.recheck.is_pending:
                self.resources.journal.note_finished(self.loop_end)
        self.resources.close()


def demand_recovered(run: LoopRun) -> None:
    """Refuse a step of a run that holds steps and was not recovered.

    Raises:
        NotRecovered: it was not.
    """
    journal = run.resources.journal
    if not run.has_begun and not journal.is_fresh:
        raise NotRecovered(run.settings.shared.run, journal.catalog.watermarks().committed)
