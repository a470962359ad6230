"""Recovery of a run in the process that trains it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tranlogs.base.errors import RecoveryError, StateMismatch
from tranlogs.training import (
    SHOWS_NO_TENSORS,
    LastUnit,
    Recovered,
    RecoveryReport,
    Target,
    describe_end,
    describe_not_computed,
    describe_unset,
    judge_exactness,
    make_report,
    name_missing_unit,
    recover,
)

from ..backends.arrays import Values
from ..state import environment
from ..state.architecture import compare_models
from ..state.fingerprint import digest
from ..state.rarely_changed_parts import find_place
from .log_choice import LogChoice
from .run_parts import RunParts
from .unit_recheck import RecheckRules, UnitRecheck

_SMALL_BYTES = 1 << 16  # variables that are kept aside between recovery and the first batch


@dataclass(frozen=True, slots=True)
class ScriptChanges:
    """Changes of the script since the run recorded it, which the user has accepted.

    Attributes:
        texts: the changes, one sentence each.
        rates: new learning rates, by optimizer.
    """

    texts: list[str] = field(default_factory=list)
    rates: dict[str, float] = field(default_factory=dict)


class Recovery:
    """Brings a run back to its newest boundary.

    Args:
        parts: of the run.
        form: in which steps are logged.
        rules: how the unit that is computed again is compared.

    Attributes:
        landed: findings of the recovery; None in a run that begins.
        changes: changes of the script.
        recheck: compares the unit that is computed again.
    """

    def __init__(self, parts: RunParts, form: LogChoice, rules: RecheckRules) -> None:
        self._parts, self._form = parts, form
        self.recheck = UnitRecheck(parts, rules)
        self._obstacle = ""  # why no unit is computed again, although the settings ask for it
        self._seconds = 0.0  # that the recovery took
        self.landed: Recovered | None = None
        self.changes = ScriptChanges()
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

        Args:
            rechecks: whether the newest unit is computed again, unless the former process came to its end.
            compares: whether steps of which the log has no tensors are compared as they are computed again.
            fit: number of the fit in which the run stands; None in a loop of the script's own.

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
        if self.recheck.deviation is not None:
            parts.rung.settle()
        if state.body["log"] == "weights" and state.log == "gradients":
            self._form.log_weights()
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
                found = recover(folder, parts.state, target, progress=parts.progress(), spare=spare)
            except StateMismatch:  # the last unit has built an optimizer, and only the checkpoint after it fits the model
                found = None
        if found is None:
            found = recover(folder, parts.state, Target(compares=compares), progress=parts.progress(), spare=spare)
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
        position, parts = self.landed.position, self._parts
        target, spare = Target(sequence=position.sequence), parts.resources.spare
        found = recover(parts.journal.paths.folder, parts.state, target, spare=spare)
        assert found is not None
        found.require_position(position)
        parts.steps.remember()

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
        parts.describe_environment()
        compared = environment.compare(state.recorded_environment, parts.environment)
        compared += self._compare_models()
        compared += [
            f"the script has changed: {text}" for text in self.changes.texts if text.startswith(("the layers", "the trial"))
        ]
        others = [*compared, *([self.recheck.describe_pending()] if self.recheck.is_pending else [])]
        others += [describe_not_computed(self._obstacle)] if self._obstacle else []
        if self.recheck.deviation is not None:
            text, is_wrong = self.recheck.deviation
            others.append(text)
            exact = False if is_wrong else exact
        notes = [*parts.journal.notes, *found.notes, *state.notes, *others, *reasons, *parts.report.texts]
        report = make_report(
            found,
            exact=parts.report.verdict(exact, others),
            notes=[text for text in notes if text not in parts.report.refuted],
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

    def _compare_models(self) -> list[str]:
        """Return the changes of the model; those of an optimizer's settings become notes, since the run's settings hold."""
        state, found = self._parts.state, []
        for text in compare_models(state.recorded_about, state.about):
            if not text.startswith("model."):
                found.append(f"the script has changed: {text}. What is trained from here on is another model")
            elif not any(note.startswith(text.partition(" was ")[0] + ":") for note in state.notes):
                holder = "the script's" if ".learning_rate was" in text and self.changes.rates else "the run's own"
                state.notes.append(f"the script has changed: {text}; {holder} holds")
        return found
