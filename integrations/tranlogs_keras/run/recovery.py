"""Recovery of a run in the process that trains it: where the run stands, its way there, and the unit that is computed again."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tranlogs.base.errors import RecoveryError, StateMismatch
from tranlogs.base.notes import Code, Note, coded
from tranlogs.training import (
    CAUSES,
    REMEMBERED_NAMES,
    SHOWS_NO_TENSORS,
    LastUnit,
    RecomputedUnit,
    Recovered,
    RecoveryReport,
    Target,
    UnitComparison,
    describe_difference,
    describe_end,
    describe_equal,
    describe_not_computed,
    describe_unset,
    is_rounding,
    judge_exactness,
    make_report,
    name_missing_unit,
    progress_bar,
    recover,
)

from ..backends.arrays import Values
from ..state.description import Change, compare_environment, compare_models
from ..state.state import digest, find_place
from .run_parts import RunParts, recover_to

_SMALL_BYTES = 1 << 16  # variables that are kept aside between recovery and the first batch


class Recovery:
    """Brings a run back to its newest boundary.

    Attributes:
        landed: findings of the recovery; None in a run that begins.
        changes: changes of the script since the run recorded it, which the user has accepted.
        changed_rates: new learning rates among them, by optimizer.
        recheck: compares the unit that is computed again.
    """

    def __init__(self, parts: RunParts, recheck: UnitRecheck) -> None:
        self._parts, self.recheck = parts, recheck
        self._obstacle = ""  # why no unit is computed again, although the settings ask for it
        self._seconds = 0.0  # that the recovery took
        self.landed: Recovered | None = None
        self.changes: list[Change] = []
        self.changed_rates: dict[str, float] = {}
        self._small: dict[str, Values] = {}  # values right after the recovery
        self._digests: dict[str, int] = {}  # of all of them, in a loop of the script's own

    @property
    def body(self) -> dict[str, Any]:
        """The body of the boundary at which recovery ended."""
        return self._parts.state.body

    @property
    def kept(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The checkpoint's state of the data, and the position at which it was taken."""
        return self._parts.state.kept

    def recover(self, *, rechecks: bool, fit: int | None = None, compares: bool = True) -> None:
        """Bring the state back. A report follows by `report`.

        With `rechecks`, the newest unit is computed again, unless the former process came to its end. With `compares`,
        steps of which the log has no tensors are compared as they are computed again. `fit` is the number of the fit
        in which the run stands; None in a loop of the script's own.

        Raises:
            RecoveryError: what is left of the run ends in an earlier fit, which is over in this process.
        """
        parts, state = self._parts, self._parts.state
        start = time.monotonic()
        parts.backend.prepare_apply(parts.model)
        found = self._recover(before_last_unit=rechecks and not parts.journal.was_finished, compares=compares)
        unit = found.last_unit
        if unit is not None and not unit.is_covered and (obstacle := self._find_obstacle(unit)):
            self._obstacle = obstacle
            found = self._recover(before_last_unit=False)
        elif rechecks and unit is None and found.position.step and not parts.journal.was_finished:
            self._obstacle = name_missing_unit(is_logged=parts.rung.logs_tensors and not parts.rung.is_measured)
        if unit is not None and not unit.is_covered and fit is not None and self.body["position"]["fit"] != fit:
            found = self._recover(before_last_unit=False)  # the newest unit is the beginning of the fit
        if fit is not None and (landed := self.body["position"]["fit"]) != fit:
            raise RecoveryError(
                f"{parts.run}: the run stood in fit {fit + 1}, but what can be read of it ends in fit {landed + 1}, at step "
                f"{found.position.step}. `tranlogs verify` names what is damaged; with --repair it takes copies from the store"
            )
        parts.resources.continue_from(found)
        self.recheck.begin(found)
        self.recheck.deviation = state.body.get("deviation") or self.recheck.end.get("deviation")
        if self.recheck.is_covered:
            parts.rung.compute_again()
        if self.recheck.deviation is not None and self.recheck.deviation[1]:
            parts.rung.note_difference()
        if state.body["log"] == "weights" and state.log == "gradients":
            parts.steps.log_weights()
        self.landed = found
        self._hold_values(with_digests=fit is None)
        parts.steps.remember()
        self._seconds = time.monotonic() - start
        self.refresh_report()

    def _find_obstacle(self, unit: LastUnit) -> str:
        if not self._parts.rung.logs_tensors:
            return SHOWS_NO_TENSORS
        return self.recheck.find_obstacle(unit)

    def _recover(self, *, before_last_unit: bool, compares: bool = False) -> Recovered:
        parts = self._parts
        folder, spare = parts.journal.paths.folder, parts.resources.spare
        found: Recovered | None = None
        if before_last_unit:
            try:
                target = Target(before_last_unit=True, compares=compares)
                with progress_bar() as progress:
                    found = recover(folder, parts.state, target, progress=progress, spare=spare)
            except StateMismatch:  # the last unit has built an optimizer, and only the checkpoint after it fits the model
                found = None
        if found is None:
            with progress_bar() as progress:
                found = recover(folder, parts.state, Target(compares=compares), progress=progress, spare=spare)
        assert found is not None, "a run with a checkpoint holds something"
        return found

    def settle_recheck(self, position: dict[str, Any] | None, *, is_last: bool = False) -> bool:
        """Draw the conclusion if the unit that is computed again is over; return True if it is. See `UnitRecheck.settle`."""
        if not self.recheck.settle(position, is_last=is_last):
            return False
        self.landed = self.recheck.recovered or self.landed
        self.refresh_report()
        return True

    def abandon_recheck(self) -> bool:
        """Go on at the newest boundary, if a unit before it was to be computed again; return True if one was."""
        if not self.recheck.is_pending:
            return False
        self.recheck.abandon()
        self.landed = self.recheck.recovered
        self._hold_values(with_digests=True)
        return True

    def find_written(self) -> dict[str, Values]:
        """Return the variables that were given other values than recovery has restored, with copies of these values."""
        return {
            name: value.copy()
            for name, value in self._read(self._parts.steps.writes.names())
            if self._digests.get(name) != digest(value)
        }

    def return_to_landing(self) -> None:
        """Bring the state back to where recovery has landed."""
        assert self.landed is not None
        recover_to(self._parts, self.landed.position)
        self._parts.steps.remember()

    def refresh_report(self) -> None:
        """Make the report again, with what became known since."""
        if self.landed is not None:
            self._parts.report.current = self._report_of(self.landed)

    def undo_writes(self) -> None:
        """Undo writes made since the recovery, such as a learning rate set before the loop: the log contains their effects."""
        parts = self._parts
        for name, value in self._small.items():
            parts.backend.assign(parts.variables.by_name[name].variable, value)
        if any(name not in self._small for name in parts.steps.writes.names()):
            self.return_to_landing()
        self._small.clear()

    def _hold_values(self, *, with_digests: bool) -> None:
        """Hold what recovery has restored: small values, and digests of all of them."""
        found = self._read([slot.name for slot in self._parts.variables.everything_but_metrics])
        self._small = {name: value.copy() for name, value in found if value.nbytes <= _SMALL_BYTES}
        self._digests = {name: digest(value) for name, value in found} if with_digests else {}

    def _read(self, names: Sequence[str]) -> list[tuple[str, Values]]:
        by_name = self._parts.variables.by_name
        values = self._parts.backend.values_of([by_name[name].variable for name in names])
        return list(zip(names, values, strict=True))

    def _report_of(self, found: Recovered) -> RecoveryReport:
        parts, state = self._parts, self._parts.state
        exact, reasons = judge_exactness(found, state.fingerprint_kinds, compared="variables")
        state.describe_environment()
        compared = compare_environment(state.recorded_environment, state.environment)
        compared += self._compare_models()
        others = [*compared, *([self.recheck.describe_pending()] if self.recheck.is_pending else [])]
        others += [describe_not_computed(self._obstacle)] if self._obstacle else []
        if self.recheck.deviation is not None:
            text, is_wrong = self.recheck.deviation
            others.append(Note("different", text))
            exact = False if is_wrong else exact
        files = [*coded("repaired", parts.journal.notes), *coded("damaged", found.notes)]
        notes = [*files, *state.notes, *others, *reasons, *parts.report.notes]
        report = make_report(
            found,
            exact=parts.report.verdict(exact, others),
            notes=[note for note in notes if note.code not in parts.report.refuted],
            place=find_place(self.body),
            seconds=self._seconds,
            timeline=parts.journal.timeline,
        )
        rechecked, seconds = self.recheck.compared
        by_loop = (self.body.get("restarts") or {}).get("unset", {})
        unset = describe_unset([name for names in by_loop.values() for name in names])
        has_ended = parts.journal.was_finished and not found.steps_lost
        end = describe_end(parts.journal.former_loop_end, unset) if has_ended else ""
        return replace(report, recheck=parts.report.recheck, rechecked=rechecked, seconds_recheck=seconds, end=end)

    def _compare_models(self) -> list[Note]:
        """Return the changes of the model; those of an optimizer's settings become notes, since the run's settings hold."""
        state, found = self._parts.state, list[Note]()
        for path, text in compare_models(state.recorded_about, state.about):
            if not path.startswith("model."):
                text = f"the script has changed: {text}. What is trained from here on is another model"
                found.append(Note("model-changed", text))
            elif path not in state.overruled:
                holder = "the script's" if path.endswith(".learning_rate") and self.changed_rates else "the run's own"
                state.notes.append(Note("settings-changed", f"the script has changed: {text}; {holder} holds"))
        changed = [text for path, text in self.changes if path.startswith(("the layers", "the trial"))]
        return found + [Note("model-changed", f"the script has changed: {text}") for text in changed]


_log = logging.getLogger("tranlogs")


# Parts of a boundary that depend on the process. How steps are logged does not show in the numbers. The descriptions of fit and
# data are compared as the run is opened, in words that name the change. How a former unit deviated is taken over from the
# record. What a script has changed before its loop is in that unit's steps.
_OF_EACH_PROCESS = frozenset({"log", "identity", "data", "deviation", "script_changes", "restarts", REMEMBERED_NAMES})
_CALLBACK = "callback."  # what callbacks keep may be times that they have measured


class UnitRecheck(RecomputedUnit):
    """Compares the unit that is computed again, and sets the recorded state back where it differs.

    `set_back` sets the state of the loop itself, once the recorded state of the model was set back. An equal unit shows the
    doubts with a code in `refuted` to be unfounded. `causes` tell usual causes of a difference, and what to do, by kind.
    `times` name measured times among what is not compared.

    Attributes:
        ignored: parts of a boundary that depend on the process, and paths in them. More may be added while the loop runs.
        deviation: how a unit first differed from its record, and True if the resume is not exact for it: in this process, or in
            a former one. Boundaries record it.
        end: the body of the boundary that ends the recorded unit; empty if no unit is computed again.
    """

    def __init__(
        self,
        parts: RunParts,
        set_back: Callable[[Recovered], None],
        *,
        refuted: Collection[Code] = (),
        causes: Mapping[str, str] = CAUSES,
        ignored: Iterable[str] = (),
        times: Collection[str] = (),
        is_quiet: bool = False,
    ) -> None:
        super().__init__(parts.run, parts.journal, parts.report)
        self._parts, self._set_loop_back, self._refuted, self._causes = parts, set_back, refuted, causes
        self._times, self._is_quiet = times, is_quiet
        self.ignored = {*_OF_EACH_PROCESS, *ignored}
        self.deviation: tuple[str, bool] | None = None
        self.end: dict[str, Any] = {}

    def begin(self, found: Recovered) -> None:
        """Let the journal compare the unit after the position where recovery has landed, if there is one to be computed."""
        if found.last_unit is None:
            return
        recheck = self._begin(found.last_unit, found.position.step, self.ignored, _CALLBACK)
        self.end = self._parts.state.decode_boundary(recheck.end)

    def take_over(self, deviation: tuple[str, bool] | None) -> None:
        """Take over that a former part of the run has deviated: what follows from it does, too."""
        self.deviation = deviation
        if deviation is not None:
            self._parts.report.warn(Note("different", deviation[0]), deviation[1])

    def settle(self, position: dict[str, Any] | None, *, is_last: bool) -> bool:
        """Draw the conclusion at a boundary if the unit is over; return True if it is.

        Where something differs, the loop goes on to the place at which the record ends: it is not compared any more, and only
        there the recorded state fits the loop.

        `position` is None if the state of the boundary cannot be read.
        """
        recheck = self._recheck
        if recheck is None or not self.is_pending:
            return False
        if position is None:
            recheck.fail("the state at the end of the batch", "cannot be read")
        elif is_last and not recheck.is_over:
            recheck.fail("the loop", "ends before the record does")
        if not recheck.is_over:
            return False
        is_far = position is not None and _place(position) < _place(self.end["position"])
        if is_far and not (recheck.is_equal or is_last or self.is_covered):
            return False
        self._conclude(recheck, position)
        return True

    def _conclude(self, recheck: UnitComparison, position: dict[str, Any] | None) -> None:
        report, journal = self._parts.report, self._parts.journal
        covered = recheck.unit if recheck.unit.is_covered else None
        self._end()
        recheck.close()
        if recheck.is_equal:
            report.recheck, report.refuted = "equal", frozenset(self._refuted)
            first = None if covered is None else covered.start.step + 1
            if not self._is_quiet:
                text = describe_equal(journal.step, times=self._times, first=first)
                print(f"TranLogs: {self._parts.run}: {text}", file=sys.stderr, flush=True)
            return
        report.recheck = "different"
        difference = recheck.difference
        assert difference is not None
        note = describe_difference(
            difference,
            causes=self._causes,
            starts_over=report.starts_over,
            recomputed=covered,
        )
        if covered is None and position is not None and _place(position) != _place(self.end["position"]):
            here, there = _in_words(position), _in_words(self.end["position"])
            where = f"The loop stands at another place than the record: {here}, not {there}"
            note = Note(note.code, note.sentence, f"{note.line}. {where}")
        if covered is None:
            self._set_back(recheck.unit)
        is_wrong = not (is_rounding(difference) or difference.may_be_time)
        self.deviation = self.deviation or (str(note), is_wrong)
        report.warn(note, is_wrong)

    def _set_back(self, unit: LastUnit) -> None:
        """Bring everything to the newest boundary, as the log has it."""
        parts = self._parts
        parts.backend.take_back(parts.model)
        self.recovered = recover_to(parts, unit.end)
        self._set_loop_back(self.recovered)
        parts.steps.remember()

    def supersede(self) -> LastUnit:
        """Compare nothing, and let a new timeline begin where recovery has landed; return the unit that no longer counts."""
        return self._supersede()

    def abandon(self) -> None:
        """Bring everything to the newest boundary after all, before a loop begins."""
        self._set_back(self._give_up())


def _place(position: dict[str, Any]) -> tuple[int, int, int]:
    return position["total"], position["epoch"], position["batch"]


def _in_words(position: dict[str, Any]) -> str:
    return f"batch {position['batch']} of epoch {position['epoch'] + 1}"
