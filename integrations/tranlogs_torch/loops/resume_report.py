"""The report of a recovery, which is made again whenever more is known: objects are tracked, and a unit is computed again."""

from __future__ import annotations

from dataclasses import replace

from tranlogs.base.notes import Note, coded
from tranlogs.training import Recovered, RecoveryReport, describe_end, describe_not_computed, make_report

from ..data.loader_iteration import find_place
from ..state import environment
from ..state.caveats import IMPLICIT, caveats, loaded_before, untracked_scheduler, verdict
from .run_parts import RunParts
from .unit_recheck import OUTSIDE, UnitRecheck


class ResumeReport:
    """Makes the report of a run that was recovered.

    Args:
        parts: of the run.
        recheck: compares the unit that is computed again.

    Attributes:
        is_at_end: True if the script of the former process came to its end, and the run was brought back to there.
        has_loaded: True if the script has loaded a checkpoint of its own, and what it makes of that is not known yet.
    """

    def __init__(self, parts: RunParts, recheck: UnitRecheck) -> None:
        self._parts, self._recheck = parts, recheck
        self._found: Recovered | None = None
        self._seconds = 0.0  # that the recovery took
        self._place: tuple[int, int, int] | None = None  # in the data, where training goes on
        self.is_at_end = self.has_loaded = False

    def begin(self, found: Recovered, seconds: float) -> RecoveryReport:
        """Return the report of a recovery that took some seconds."""
        self._found, self._seconds, self._place = found, seconds, None
        self._parts.report.current = report = self._make(found)
        return report

    def note_set_back(self, found: Recovered | None) -> None:
        """Make the report again after the unit was computed.

        Args:
            found: the recovery that set the recorded state back; None if that was not necessary.
        """
        if found is not None and self._found is not None:
            self._found, self._place = found, None
        if self._found is not None:
            self._parts.report.current = self._make(self._found)

    def refresh(self) -> None:
        """Make the report again: what was missing then may be tracked now."""
        if self._found is not None and self._parts.auxiliary.has_landed:
            self._parts.report.current = self._make(self._found)

    def note_own_loop(self) -> None:
        """Note that a loop of `LoggedOptimizer` begins: it counts finished epochs, whatever the script has loaded before."""
        self.has_loaded = False

    def note_end(self) -> None:
        """Note the end of a script in which no loop of `LoggedOptimizer` has begun: it may have left epochs out by itself."""
        if self.has_loaded:
            self.has_loaded = False
            self._parts.report.warn(loaded_before(self._parts.report.face), False)

    def _make(self, found: Recovered) -> RecoveryReport:
        parts, state, auxiliary = self._parts, self._parts.state, self._parts.auxiliary
        exact, notes = verdict(state, found)
        compared = environment.compare(state.redone.environment, parts.environment)
        optimizers = [optimizer for hooks in parts.hooks.values() for optimizer in (hooks.shell, hooks.inner)]
        scheduler = untracked_scheduler(optimizers, auxiliary.tracked.values())
        others = [*auxiliary.caveats(parts.report.face), *scheduler, *caveats(state, is_outside=auxiliary.is_outside)]
        if auxiliary.has_landed or self._place is None:  # a loader may be tracked after the recovery
            self._place = find_place(auxiliary.sequence.read(), auxiliary.read_data(), auxiliary.count)
        if parts.report.recheck == "pending" and auxiliary.is_loop_remembered:  # the unit is going to show it
            others = [note for note in others if note.code != IMPLICIT.code]
        if auxiliary.deviation is not None:
            text, is_wrong = auxiliary.deviation
            if text not in parts.report.notes:
                text = f"an earlier resume of this run differed: {text}"
            others.append(Note("different", text))
            exact = False if is_wrong else exact
        elif parts.report.recheck == "pending":
            others.append(self._recheck.describe_pending())
        elif self._recheck.obstacle == OUTSIDE and IMPLICIT in others:
            pass  # says the same
        elif self._recheck.obstacle and found.position.step:
            others.append(describe_not_computed(self._recheck.obstacle))
        files = [*coded("repaired", parts.journal.notes), *coded("damaged", found.notes)]
        set_back = coded("environment", state.redone.notes)
        found_notes = [*files, *set_back, *compared, *notes, *parts.report.notes, *others]
        report = make_report(
            found,
            exact=parts.report.verdict(exact, others),
            notes=[note for note in found_notes if note.code not in parts.report.refuted],
            place=self._place,
            seconds=self._seconds,
            timeline=parts.journal.timeline,
        )
        rechecked, seconds_recheck = self._recheck.compared
        has_ended = self.is_at_end and not found.steps_lost
        end = describe_end(parts.journal.former_loop_end, parts.restarts.unset) if has_ended else ""
        return replace(report, recheck=parts.report.recheck, rechecked=rechecked, seconds_recheck=seconds_recheck, end=end)
