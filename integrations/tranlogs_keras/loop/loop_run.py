"""A run whose loop is the script's own: recovery, boundaries, and the place in the data."""

from __future__ import annotations

import logging
from typing import Any

from tranlogs.base.config import OUTSIDE_UNITS_MAX
from tranlogs.base.errors import NotRecovered, UsageError
from tranlogs.base.notes import Code, Note
from tranlogs.training import (
    LEFT_NOW,
    LOOP_LENGTH,
    UNKNOWN_DATA,
    LiveReport,
    LoopRecord,
    Parts,
    Recovered,
    RecoveryReport,
    Remembered,
    Restarts,
    ScalarHistory,
    announce,
    describe_not_computed,
    describe_script_change,
    describe_superseded,
    path_of_remembered,
)

from .. import keras_internals
from ..backends import make_backend
from ..data.cursor import Position
from ..data.source import Source
from ..run.boundaries import RNG, Boundaries
from ..run.recovery import Recovery, UnitRecheck
from ..run.run_parts import RunParts, find_newest_checkpoint, open_resources, report_start
from ..settings import Settings
from ..state import rng
from ..state.state import LogKind, found_under
from .apply_hooks import LoopCapture, ReplayableLoopState
from .data_place import UNKNOWN_ITERABLE, DataPlace, LoopData
from .loop_members import REMEMBERED, LoopVariables, Members, ScriptChanges, make_framework
from .untracked_variables import RecordedDoubts

_log = logging.getLogger("tranlogs")

_IMPLICIT = Note(
    "outside-loops",
    "a step was taken outside of the loops of LoggedOptimizer: which data follow, and random numbers drawn since, are known to "
    "the script alone",
    "Take batches from optimizer.epochs(...) or optimizer.batches(...)",
)


class LoopRun:
    """A run, its optimizers and its loop in this process. `LoggedOptimizer` creates one; `add_optimizer` shares it.

    A loop of one's own may take steps before it is recovered, and outside of all loops, and may be set back while it runs. The
    class keeps count of these cases for the report.

    Attributes:
        members: models, optimizers and what is tracked.
        report: report of the recovery, with what became known since.
        scalars: that the loop has logged.
        place: where the loop stands in its data.
        resources: journal, monitor, shipping and the handler of signals.
        is_looping: whether a loop of `LoggedOptimizer` runs.
        loop_end: "complete" if the last loop gave all that it had; else where it was left; empty if there was none.
        has_begun: whether the run was recovered or begun in this process.
        restarts: names what of the script starts over.
    """

    # Made by `recover`.
    _parts: RunParts
    _capture: LoopCapture
    _recovery: Recovery
    _boundaries: Boundaries

    def __init__(self, settings: Settings, members: Members) -> None:
        self.settings, self.members = settings, members
        self.report, self.scalars = LiveReport(settings.shared.run), ScalarHistory()
        self.place = DataPlace(self.report)
        self.is_looping, self.loop_end = False, ""
        self.has_begun = False
        self._doubts = RecordedDoubts(self.report)
        self.restarts = Restarts(self.report, make_framework(members))
        self._is_waiting = False  # for the place at which the run stood
        self._changes: ScriptChanges | None = None  # made between recover() and the loop
        self._has_script_changes = False  # in the unit that is running
        self._is_outside = False  # a step of the running unit was taken outside of all loops
        self._outside_units = 0  # in a row
        self.resources = open_resources(settings, members)

    # Beginning.

    def recover(self) -> RecoveryReport:
        """Bring the run back to its newest boundary, or begin it."""
        if self.has_begun:
            raise UsageError("recover() must come before the first loop and the first step, and only once")
        if self.resources.journal.is_closed:
            raise UsageError(f"{self.settings.shared.run}: the run is closed. Make a new LoggedOptimizer to go on")
        self.restarts.note_start()
        newest = find_newest_checkpoint(self.resources)
        self._make_parts(None if newest is None else newest.meta["log"])
        self.place.seed = newest.boundary["seed"] if newest is not None else self.settings.seed_or_fresh()
        if newest is not None:
            self._doubts.note(*(Note(*packed) for packed in newest.boundary["doubts"]))
            self._recovery.recover(rechecks=self.settings.shared.rechecks)
            self._land()
        else:
            self._boundaries.begin()
            report_start(self._parts, self.settings)
        self.has_begun = True
        self._capture.tap(self.members.optimizers)
        return self.report.current or RecoveryReport()

    def _make_parts(self, recorded: LogKind | None) -> None:
        """Make the parts of the run, given what it has recorded steps by: it may have found out that it needs weights."""
        settings, members = self.settings, self.members
        log: LogKind = "gradients" if settings.log == "auto" else settings.log
        log = log if recorded is None or "inputs" in (log, recorded) else recorded
        members.build()
        backend = make_backend()
        variables = LoopVariables(members, backend, is_whole=log == "weights")
        state = ReplayableLoopState(variables, backend, log, settings.shared.fingerprint)
        state.updates = {name: backend.updates_of(optimizer) for name, optimizer in members.optimizers.items()}
        state.environment = self.resources.environment
        state.describe()
        capture = LoopCapture(
            settings.run, state, self.resources.journal, settings.choose_rung(), self._doubts.add, self._before_step
        )
        parts = RunParts(settings.run, state, capture, self.resources, self.report)
        self._parts, self._capture = parts, capture
        self._recovery = Recovery(parts, self._make_recheck(parts))
        self._boundaries = Boundaries(
            parts, self._recovery, read_place=self._read_place, read_for_checkpoint=self._read_for_checkpoint
        )

    def _make_recheck(self, parts: RunParts) -> UnitRecheck:
        # What a process declares or has found out of its loop and its data. Doubts are taken over from the record.
        times = self.members.times
        ignored = {"turns", "doubts", LOOP_LENGTH, "source.draws", "source.draws_own", *map(path_of_remembered, times)}
        refuted: list[Code] = ["unknown-data"]
        if self.members.loop_state is not None:  # how many turns are left of a loop is known if the run keeps its state
            refuted.append("outside-loops")
        return UnitRecheck(parts, self._set_back, refuted=refuted, ignored=ignored, times=times)

    def _land(self) -> None:
        """Take over the place at which the run stood."""
        recovery, place = self._recovery, self.place
        body, found = recovery.body, recovery.landed
        assert found is not None
        self._is_waiting = bool(body["position"]["total"] or body["position"]["epoch"] or found.position.step)
        self.members.write_remembered(body["tracked"])
        if self.members.loop_state is not None and REMEMBERED in body["tracked"]:
            for note in self.members.loop_state.describe_names_apart(body["tracked"][REMEMBERED]):
                self.report.warn(note, False)
        self._take_scalars(found)
        self._doubts.take_over(body["doubts"], recovery.recheck.end.get("doubts", ()))
        place.land(body)
        self.restarts.resume(body.get("restarts"))

    def _take_scalars(self, found: Recovered) -> None:
        self.scalars.unpack(self._recovery.kept[0].get("scalars", {}))
        self.scalars.extend(found.scalars)

    def remember(self, values: dict[str, Any]) -> Remembered:
        """Remember attributes of the loop's namespace."""
        return self.members.remember(values, self._doubts.add)

    def demand_recovered(self) -> None:
        """Refuse a step of a run that holds steps and was not recovered."""
        journal = self.resources.journal
        if not journal.is_fresh:
            raise NotRecovered(self.settings.shared.run, journal.catalog.watermarks().committed)

    def begin(self) -> None:
        """Recover the run before a loop; if the script has done that, keep what it has set since."""
        if not self.has_begun:  # nobody has the report who could print it
            report = self.recover()
            announce(self.settings.shared.run, report, f"step {report.step}")
            return
        # If the run stood behind the first loop, what the script does before it is undone as what it does between loops.
        stands_in_first = not self.place.sequence.has_finished and self.read_newest_loop().count <= 1
        is_resumed = self._is_waiting or self._recovery.recheck.is_covered
        if is_resumed and not self.place.sequence.entered and stands_in_first:
            self._settle_script_changes()

    def enter_later_loop(self) -> None:
        """Do not wait for the newest unit if the script has left the loop that was to compute it again.

        Training goes on at the newest boundary, unless the script has changed something.
        """
        if not 0 < self.read_newest_loop().count <= self.place.sequence.entered or self._capture.steps_since_boundary:
            return
        if self._settle_script_changes():
            return
        recovery = self._recovery
        recovery.abandon_recheck()
        self.place.position = Position(**recovery.body["position"])
        self.place.sequence.land(recovery.body["loop"])
        self.report.warn(describe_not_computed(LEFT_NOW), False)
        recovery.refresh_report()
        self._is_waiting = True

    def _settle_script_changes(self) -> bool:
        """Compare the state with that where recovery has landed. What the script has changed stands; return True if it has.

        The unit that was to be computed again is then trained like any other: a new timeline begins where recovery has landed,
        and the record of the unit counts no more.
        """
        recovery = self._recovery
        changes = ScriptChanges(self._parts, self.members, recovery.find_written(), recovery.body["tracked"])
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

    def take_data(self, data: LoopData) -> Source:
        """Make the source of the batches, and compare the data with those of the run."""
        if data.is_of_script and self.place.note_turns(stateless=data.is_stateless, reason=UNKNOWN_ITERABLE):
            self._recovery.refresh_report()
        place, recovery = self.place, self._recovery
        recorded = recovery.body.get("data") if recovery.landed is not None else None
        if place.sequence.is_new and place.unmade is None:
            recorded = None
        source = place.take_data(data, self._parts.backend, recorded, self._parts.run)
        body, place.unmade = place.unmade, None
        if body is not None and body["position"]["passes"] == place.position.passes:
            place.set_source(body, *recovery.kept)
        return source

    def come_back(self) -> bool:
        """Undo what code before the loop in which the run stood has written, but for what the script has set since `recover()`.

        Returns:
            False if the run does not stand anywhere.
        """
        if not self._is_waiting:
            return False
        self._is_waiting = False
        body = self._recovery.body
        self._recovery.undo_writes()
        self._parts.state.set_auxiliary(body)
        recheck = self._recovery.recheck
        recheck.ignore_strangers(body["tracked"], recheck.end.get("tracked", {}), self.members.tracked)
        for name in self.members.write_tracked(body["tracked"]):
            text = f"{name!r} was tracked by the run or is tracked now, and not both, or it is of another kind: it begins anew"
            self._doubts.add(Note("not-recovered", text, "Track the same objects under the same names as the run had"))
        if not self.place.set_source(body, *self._recovery.kept):
            self.place.unmade = body if body["source"] else None
        self.set_random_states()
        self._parts.steps.remember()
        if self._changes is not None:
            self._changes.apply()
        return True

    def _set_back(self, found: Recovered) -> None:
        """Set what the loop keeps besides models and optimizers to what the newest boundary holds."""
        recovery, place = self._recovery, self.place
        body = recovery.body
        place.sequence.land(body["loop"])
        if place.sequence.is_over:
            raise UsageError(
                f"{self.settings.shared.run}: loop {place.sequence.entered} was left by break before the crash, and is not "
                "left now. What decides that (a best score, a count of epochs) belongs in optimizer.remember(...)"
            )
        self.members.write_tracked(body["tracked"])
        self._take_scalars(found)
        if place.position.as_dict() == body["position"] and place.set_source(body, *recovery.kept):
            place.was_set_back = True
        self.set_random_states()

    def read_newest_loop(self) -> LoopRecord:
        """Return the loop of the newest boundary of the log, if the unit before it is computed again; else an empty record."""
        recheck = self._recovery.recheck
        is_skipped = recheck.is_pending and not recheck.is_covered  # else loops behind are computed again
        return LoopRecord.read(recheck.end.get("loop") if is_skipped else None)

    def set_random_states(self) -> None:
        """Set the random number generators to what they were where the run stood."""
        rng.set_rng(found_under(RNG, self._recovery.body), self._parts.backend)

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
        if self._is_outside and self._capture.steps_since_boundary:
            self._commit_outside()
        if not self._capture.rung.logs_tensors:
            self._boundaries.log_tensors()
        self._is_outside = True

    def _commit_outside(self) -> None:
        """Commit a step that was taken outside of all loops. A script may take a few before its loop, so they warn later."""
        self._is_outside, self._outside_units = False, self._outside_units + 1
        self._doubts.note(_IMPLICIT)
        self.restarts.look()
        if self._outside_units == OUTSIDE_UNITS_MAX:
            self.report.warn_of_script(_IMPLICIT)
        self._boundaries.commit(is_end=True)

    def commit_rest(self) -> None:
        """Commit the steps of a batch in which the loop before was left by `break`, as the next loop begins."""
        if self._capture.steps_since_boundary:
            self.boundary()

    def note_end(self, *, of_loop: bool) -> None:
        """Note that an epoch ends, or the loop itself, with the next boundary."""
        self.restarts.note_end(of_loop=of_loop)
        if of_loop:
            self._boundaries.expect_end()

    def leave_loop(self) -> None:
        """Note that the running loop was left."""
        self.is_looping = False
        self.restarts.leave()
        self.place.sequence.leave()
        self._boundaries.leave_loop()

    def boundary(self, *, is_epoch_end: bool = False) -> None:
        """Commit what came since the last boundary as one unit."""
        if self._capture.is_closed:
            raise UsageError(f"{self.settings.shared.run}: the run was closed inside its loop. Leave the loop before close()")
        self._is_outside, self._outside_units = False, 0
        self._doubts.withdraw(_IMPLICIT)
        self._capture.check_step()
        self.restarts.look()
        variables = self._parts.variables
        known = [slot.variable for slot in [*variables.everything_but_metrics, *variables.metrics]]
        self._doubts.name_untracked(self._parts.backend, [*known, keras_internals.global_seed_state()])
        noted = self.scalars.commit(self.resources.journal.step)
        wants = is_epoch_end and self.settings.every_epoch
        self.place.was_set_back = False
        self._boundaries.commit(
            is_end=True, wants_checkpoint=wants, scalars=noted or None, has_script_changes=self._has_script_changes
        )
        self._has_script_changes = False

    def note_turns(self, *, stateless: bool) -> None:
        """Note that the loop takes turns without data, and whether it declares that these depend on nothing of its own."""
        if self.place.note_turns(stateless=stateless, reason=UNKNOWN_DATA):
            self._recovery.refresh_report()

    def _read_place(self, rng_now: dict[str, Any], parts: Parts) -> dict[str, Any]:
        return {
            **self.place.read(rng_now, parts),
            "has_stopped": False,
            "tracked": self.members.read_tracked(),
            "doubts": self._doubts.read(),
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
        if self.has_begun:
            if is_orderly:
                self.restarts.close()
            self._end(is_orderly=is_orderly)
        self.resources.close()

    def _end(self, *, is_orderly: bool) -> None:
        capture, recheck, journal = self._capture, self._recovery.recheck, self.resources.journal
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
        capture.end()
        unreached = self.place.sequence.describe_unreached() if self._is_waiting else None
        if is_orderly and unreached is not None and not journal.was_finished:
            self.report.warn(unreached, bool(self.place.sequence.entered))
        if is_orderly:
            recheck.note_end()
        recheck.close()
        if is_orderly and not self.is_looping and not recheck.is_pending:
            journal.note_finished(self.loop_end)
