"""A run whose loop is the script's own: recovery, boundaries, and the place in the data."""

from __future__ import annotations

import logging
import math
from typing import Any

from tranlogs.base.config import OUTSIDE_UNITS_MAX, fitting_segment_bytes
from tranlogs.base.errors import NotRecovered, UsageError
from tranlogs.training import (
    LEFT_NOW,
    LOOP_LENGTH,
    UNKNOWN_DATA,
    LiveReport,
    LoopRecord,
    LoopState,
    Recovered,
    RecoveryReport,
    Remembered,
    Restarts,
    RunResources,
    ScalarHistory,
    announce,
    describe_not_computed,
    describe_script_change,
    describe_superseded,
    path_of_remembered,
)

from .. import keras_internals
from ..backends import arrays
from ..data.cursor import Position
from ..data.source import Source
from ..run.boundaries import RNG, Boundaries, report_start
from ..run.log_choice import LogChoice
from ..run.recovery import RecheckRules, Recovery, find_newest_checkpoint
from ..run.run_parts import RunParts
from ..settings import LoopSettings
from ..state import rng
from ..state.boundary_parts import Parts, found_under
from ..state.script_values import LoopValues
from ..state.state import LogKind
from .apply_hooks import BegunLoop, LoopCapture, make_loop_state
from .data_place import UNKNOWN_ITERABLE, DataPlace, LoopData
from .loop_members import REMEMBERED, Members, ScriptChanges, make_framework
from .untracked_variables import RecordedDoubts, UntrackedVariables

_log = logging.getLogger("tranlogs")

_IMPLICIT = (
    "a step was taken outside of the loops of LoggedOptimizer: which data follow, and random numbers drawn since, are known to "
    "the script alone. Take batches from optimizer.epochs(...) or optimizer.batches(...)"
)


class LoopRun:
    """A run, its optimizers and its loop in this process. `LoggedOptimizer` creates one; `add_optimizer` shares it.

    A loop of one's own may take steps before it is recovered, and outside of all loops, and may be set back while it runs. The
    class keeps count of these cases for the report, so it has more attributes than others.

    Args:
        settings: of the run.
        members: models and optimizers; more may be added until the run is recovered.

    Attributes:
        members: models, optimizers and what is tracked.
        report: report of the recovery, with what became known since.
        scalars: that the loop has logged.
        place: where the loop stands in its data.
        resources: journal, monitor, shipping and the handler of signals.
        is_looping: whether a loop of `LoggedOptimizer` runs.
        loop_end: "complete" if the last loop gave all that it had; else where it was left; empty if there was none.
        restarts: names what of the script starts over.
        times: names of remembered attributes that are times which the script measures.
    """

    def __init__(self, settings: LoopSettings, members: Members) -> None:
        self.settings, self.members = settings, members
        self.report, self.scalars = LiveReport(settings.shared.run), ScalarHistory()
        self.place = DataPlace(self.report)
        self.is_looping, self.loop_end = False, ""
        self.times: list[str] = []
        self._environment: dict[str, Any] = {}
        self._doubts = RecordedDoubts(self.report)
        self._begun: BegunLoop | None = None
        self._loop_state: LoopState | None = None
        self.restarts = Restarts(self.report, make_framework(members))
        self._is_waiting = False  # for the place at which the run stood
        self._needs_source: dict[str, Any] | None = None  # boundary with the state of a source that is not made yet
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
        """True if the run was recovered or begun in this process."""
        return self._begun is not None

    # Beginning.

    def recover(self) -> RecoveryReport:
        """Bring the run back to its newest boundary, or begin it."""
        if self._begun is not None:
            raise UsageError("recover() must come before the first loop and the first step, and only once")
        if self.resources.journal.is_closed:
            raise UsageError(f"{self.settings.shared.run}: the run is closed. Make a new LoggedOptimizer to go on")
        self.restarts.note_start()
        newest = find_newest_checkpoint(self.resources)
        begun = self._make_parts(self._choose_log(None if newest is None else newest.meta["log"]))
        self.place.seed = newest.boundary["seed"] if newest is not None else self.settings.seed_or_fresh()
        if newest is not None:
            self._doubts.note(*newest.boundary["doubts"])
            begun.recovery.recover(rechecks=self.settings.shared.rechecks)
            self._land(begun.recovery)
        else:
            begun.boundaries.begin()
            shared = self.settings.shared
            report_start(begun.parts, shared, every_epoch=self.settings.every_epoch, retention=shared.retention)
        self._begun = begun
        begun.tap_optimizers(self.members)
        return self.report.current or RecoveryReport()

    def _choose_log(self, recorded: LogKind | None) -> LogKind:
        """Return what steps are logged by, given what the run has recorded: it may have found out that it needs weights."""
        log: LogKind = "gradients" if self.settings.log == "auto" else self.settings.log
        return log if recorded is None or "inputs" in (log, recorded) else recorded

    def _make_parts(self, log: LogKind) -> BegunLoop:
        settings, members, journal = self.settings, self.members, self.resources.journal
        run, rung = settings.run, settings.choose_rung()
        state, backend = make_loop_state(members, log, settings)
        self._environment.update(state.environment)
        form = LogChoice(run, state, journal, self.report, can_change=True)
        capture = LoopCapture(
            state, journal, rung, self._before_step, form.give_up_gradients, form.note_late_write, self._note_random(form)
        )
        parts = RunParts(
            run,
            members,
            backend,
            state,
            capture,
            self.resources,
            self.report,
            self._environment,
            rung,
            lambda: None,
        )
        recovery = Recovery(parts, form, self._make_rules())
        boundaries = Boundaries(
            parts,
            form,
            recovery,
            read_place=self._read_place,
            read_for_checkpoint=self._read_for_checkpoint,
            find_late=list,
            describe=lambda: None,
        )
        return BegunLoop(parts, capture, recovery, boundaries, UntrackedVariables(backend), [])

    def _make_rules(self) -> RecheckRules:
        # What a process declares or has found out of its loop and its data. Doubts are taken over from the record.
        ignored = {"turns", "doubts", LOOP_LENGTH, "source.draws", "source.draws_own", *map(path_of_remembered, self.times)}
        refuted = [UNKNOWN_DATA, UNKNOWN_ITERABLE]
        if self._loop_state is not None:  # how many turns are left of the script's own loop is known if the run keeps its state
            refuted.append(_IMPLICIT)
        return RecheckRules(self._set_back, refuted, ignored=ignored, times=self.times)

    def _note_random(self, form: LogChoice) -> Any:
        def note(names: Any) -> None:
            form.note_random_operations(names)
            self._doubts.note(*(text for text in self.report.texts if text not in (UNKNOWN_DATA, UNKNOWN_ITERABLE)))

        return note

    def _land(self, recovery: Recovery) -> None:
        """Take over the place at which the run stood."""
        body, found, place = recovery.body, recovery.landed, self.place
        assert found is not None
        self._is_waiting = bool(body["position"]["total"] or body["position"]["epoch"] or found.position.step)
        self.members.write_remembered(body["tracked"])
        if self._loop_state is not None and REMEMBERED in body["tracked"]:
            for text in self._loop_state.describe_names_apart(body["tracked"][REMEMBERED]):
                self.report.warn(text, False)
        self._take_scalars(recovery, found)
        self._doubts.take_over(body["doubts"], recovery.recheck.end.get("doubts", ()))
        place.land(body)
        self.restarts.resume(body.get("restarts"))

    def _take_scalars(self, recovery: Recovery, found: Recovered) -> None:
        self.scalars.unpack(recovery.kept[0].get("scalars", {}))
        self.scalars.extend(found.scalars)

    def remember(self, values: dict[str, Any]) -> Remembered:
        """Remember attributes of the loop's namespace."""
        if self._loop_state is None:
            self._loop_state = LoopState(LoopValues(), self._doubts.add)
        self._loop_state.add(values)
        self.members.remember(self._loop_state)
        return self._loop_state.namespace

    def begin(self) -> None:
        """Recover the run before a loop; if the script has done that, keep what it has set since."""
        if self._begun is None:  # nobody has the report who could print it
            report = self.recover()
            announce(self.settings.shared.run, report, f"step {report.step}")
            return
        # If the run stood behind the first loop, what the script does before it is undone as what it does between loops.
        stands_in_first = not self.place.sequence.has_finished and self.read_newest_loop().count <= 1
        is_resumed = self._is_waiting or self._begun.recovery.recheck.is_covered
        if is_resumed and not self.place.sequence.entered and stands_in_first:
            self._settle_script_changes(self._begun)

    def enter_later_loop(self) -> None:
        """Do not wait for the newest unit if the script has left the loop that was to compute it again.

        Training goes on at the newest boundary, unless the script has changed something.
        """
        begun = self._demand_begun()
        if not 0 < self.read_newest_loop().count <= self.place.sequence.entered or begun.capture.steps_since_boundary:
            return
        if self._settle_script_changes(begun):
            return
        recovery = begun.recovery
        recovery.abandon_recheck()
        self.place.position = Position(**recovery.body["position"])
        self.place.sequence.land(recovery.body["loop"])
        self.report.warn(describe_not_computed(LEFT_NOW), False)
        recovery.refresh_report()
        self._is_waiting = True

    def _settle_script_changes(self, begun: BegunLoop) -> bool:
        """Compare the state with that where recovery has landed. What the script has changed stands; return True if it has.

        The unit that was to be computed again is then trained like any other: a new timeline begins where recovery has landed,
        and the record of the unit counts no more.
        """
        recovery = begun.recovery
        changes = ScriptChanges(begun.parts, self.members, recovery.find_written(), recovery.body["tracked"], self.times)
        if not changes.texts:
            return False
        self._changes, self._has_script_changes = changes, True
        if recovery.recheck.is_pending:
            self.report.warn(describe_superseded(recovery.recheck.supersede()), False)
        for text in changes.texts:
            self.report.warn(describe_script_change(text), False)
        recovery.refresh_report()
        return True

    # The place in the data.

    def note_data(self, data: LoopData | None) -> None:
        """Note the data of a loop that begins."""
        if self.place.note_data(data):
            self._needs_source = None

    def take_data(self, data: LoopData) -> Source:
        """Make the source of the batches, and compare the data with those of the run."""
        begun = self._demand_begun()
        if data.is_of_script and self.place.note_turns(stateless=data.is_stateless, reason=UNKNOWN_ITERABLE):
            begun.recovery.refresh_report()
        recorded = begun.recovery.body.get("data") if begun.recovery.landed is not None else None
        if self.place.sequence.is_new:
            recorded = None if self._needs_source is None else recorded
        source = self.place.take_data(data, begun.parts.backend, recorded, begun.parts.run)
        body, self._needs_source = self._needs_source, None
        if body is not None and body["position"]["passes"] == self.place.position.passes:
            self.place.set_source(body, *begun.recovery.kept)
        return source

    def come_back(self) -> bool:
        """Undo what code before the loop in which the run stood has written, but for what the script has set since `recover()`.

        Returns:
            False if the run does not stand anywhere.
        """
        if not self._is_waiting:
            return False
        self._is_waiting = False
        begun = self._demand_begun()
        body = begun.recovery.body
        begun.recovery.undo_writes()
        begun.parts.state.set_auxiliary(body)
        recheck = begun.recovery.recheck
        recheck.ignore_strangers(body["tracked"], recheck.end.get("tracked", {}), self.members.tracked)
        for name in self.members.write_tracked(body["tracked"]):
            self._doubts.add(
                f"{name!r} was tracked by the run or is tracked now, and not both, or it is of another kind: it begins anew. "
                f"Track the same objects under the same names as the run had"
            )
        if not self.place.set_source(body, *begun.recovery.kept):
            self._needs_source = body if body["source"] else None
        self.set_random_states()
        begun.parts.steps.remember()
        if self._changes is not None:
            self._changes.apply()
        return True

    def _set_back(self, found: Recovered) -> None:
        """Set what the loop keeps besides models and optimizers to what the newest boundary holds."""
        recovery, place = self._demand_begun().recovery, self.place
        body = recovery.body
        place.sequence.land(body["loop"])
        if place.sequence.is_over:
            raise UsageError(
                f"{self.settings.shared.run}: loop {place.sequence.entered} was left by break before the crash, and is not "
                "left now. What decides that (a best score, a count of epochs) belongs in optimizer.remember(...)"
            )
        self.members.write_tracked(body["tracked"])
        self._take_scalars(recovery, found)
        if place.position.as_dict() == body["position"] and place.set_source(body, *recovery.kept):
            place.was_set_back = True
        self.set_random_states()

    def read_newest_loop(self) -> LoopRecord:
        """Return the loop of the newest boundary of the log, if the unit before it is computed again; else an empty record."""
        recheck = self._demand_begun().recovery.recheck
        is_skipped = recheck.is_pending and not recheck.is_covered  # else loops behind are computed again
        return LoopRecord.read(recheck.end.get("loop") if is_skipped else None)

    def set_random_states(self) -> None:
        """Set the random number generators to what they were where the run stood."""
        begun = self._demand_begun()
        rng.set_rng(found_under(RNG, begun.recovery.body), begun.parts.backend)

    def _demand_begun(self) -> BegunLoop:
        assert self._begun is not None
        return self._begun

    # Steps and boundaries.

    def _before_step(self) -> None:
        """Prepare for a step."""
        if self.is_looping:
            return
        self.place.sequence.demand_no_step_between()
        if self._is_waiting:
            self.come_back()
        if not self.restarts.is_open:
            self.restarts.open()
        begun = self._demand_begun()
        if self._is_outside and begun.capture.steps_since_boundary:
            self._commit_outside()
        if not begun.parts.rung.logs_tensors:
            begun.boundaries.log_tensors()
        self._is_outside = True

    def _commit_outside(self) -> None:
        """Commit a step that was taken outside of all loops. A script may take a few before its loop, so they warn later."""
        self._is_outside, self._outside_units = False, self._outside_units + 1
        self._doubts.note(_IMPLICIT)
        self.restarts.look()
        if self._outside_units == OUTSIDE_UNITS_MAX:
            self.report.warn_of_script(_IMPLICIT)
        self._demand_begun().boundaries.commit(is_end=True)

    def commit_rest(self) -> None:
        """Commit the steps of a batch in which the loop before was left by `break`, as the next loop begins."""
        if self._demand_begun().capture.steps_since_boundary:
            self.boundary()

    def note_end(self, *, of_loop: bool) -> None:
        """Note that an epoch ends, or the loop itself, with the next boundary."""
        self.restarts.note_end(of_loop=of_loop)
        if of_loop:
            self._demand_begun().boundaries.expect_end()

    def leave_loop(self) -> None:
        """Note that the running loop was left."""
        self.is_looping = False
        self.restarts.leave()
        self.place.sequence.leave()
        self._demand_begun().boundaries.leave_loop()

    def boundary(self, *, is_epoch_end: bool = False) -> None:
        """Commit what came since the last boundary as one unit."""
        begun = self._demand_begun()
        if begun.capture.is_closed:
            raise UsageError(f"{self.settings.shared.run}: the run was closed inside its loop. Leave the loop before close()")
        self._is_outside, self._outside_units = False, 0
        self._doubts.withdraw(_IMPLICIT)
        begun.capture.check_step()
        self.restarts.look()
        self._name_untracked(begun)
        journal = begun.parts.journal
        noted = self.scalars.commit(journal.step)
        wants = is_epoch_end and self.settings.every_epoch
        self.place.was_set_back = False
        begun.boundaries.commit(
            is_end=True, wants_checkpoint=wants, scalars=noted or None, has_script_changes=self._has_script_changes
        )
        self._has_script_changes = False

    def _name_untracked(self, begun: BegunLoop) -> None:
        variables = begun.parts.variables
        known = [slot.variable for slot in [*variables.everything_but_metrics, *variables.metrics]]
        for path in begun.untracked.find_changed([*known, keras_internals.global_seed_state()]):
            self._doubts.add(
                f"the loop writes {path}, which the run does not know: it is not brought back. Give what holds it (a metric, a "
                "seed generator, a model) to optimizer.track(name=...) before the loop"
            )

    def note_turns(self, *, stateless: bool) -> None:
        """Note that the loop takes turns without data, and whether it declares that these depend on nothing of its own."""
        if self.place.note_turns(stateless=stateless, reason=UNKNOWN_DATA):
            self._demand_begun().recovery.refresh_report()

    def _read_place(self, rng_now: dict[str, Any], parts: Parts) -> dict[str, Any]:
        return {
            **self.place.read(rng_now, parts),
            "has_stopped": False,
            "tracked": self.members.read_tracked(),
            "doubts": list(self._doubts.texts),
            **({"script_changes": True} if self._has_script_changes else {}),
            **({"restarts": self.restarts.recorded} if self.restarts.recorded is not None else {}),
        }

    def _read_for_checkpoint(self) -> dict[str, Any]:
        return {**self.place.read_for_checkpoint(), "scalars": self.scalars.pack()}

    # The end.

    def close(self, *, is_orderly: bool) -> None:
        """Commit what is complete, seal the log, release the run."""
        if self.resources.journal.is_closed:
            return
        if self._begun is not None:
            if is_orderly:
                self.restarts.close()
            self._end(self._begun, is_orderly=is_orderly)
        self.resources.close()

    def _end(self, begun: BegunLoop, *, is_orderly: bool) -> None:
        capture, recheck, journal = begun.capture, begun.recovery.recheck, self.resources.journal
        if capture.steps_since_boundary and is_orderly and self._is_outside and not self.is_looping:
            self._commit_outside()
        elif capture.steps_since_boundary:
            _log.log(
                logging.INFO if is_orderly else logging.WARNING,  # a loop that ends by `break` loses nothing
                "%s: the loop was left in the middle of a batch (break, or an exception): the log ends at step %d, and "
                "that batch is computed again when the run goes on",
                self.settings.shared.run,
                journal.committed,
            )
        capture.is_closed = True
        capture.close()
        for tap in begun.taps:
            tap.release()
        unreached = self._is_waiting and self.place.sequence.describe_unreached()
        if is_orderly and unreached and not journal.was_finished:
            self.report.warn(unreached, bool(self.place.sequence.entered))
        if is_orderly:
            recheck.note_end()
        recheck.close()
        if is_orderly and not self.is_looping and not recheck.is_pending:
            journal.note_finished(self.loop_end)


def demand_recovered(run: LoopRun) -> None:
    """Refuse a step of a run that holds steps and was not recovered.

    Raises:
        NotRecovered: it was not.
    """
    journal = run.resources.journal
    if not run.has_begun and not journal.is_fresh:
        raise NotRecovered(run.settings.shared.run, journal.catalog.watermarks().committed)
