"""The newest unit before a crash, which the script computes again: the comparison, and what follows from it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tranlogs.training import (
    CAUSES,
    REMEMBERED_NAMES,
    LastUnit,
    RecomputedUnit,
    Recovered,
    Target,
    UnitComparison,
    describe_difference,
    describe_equal,
    is_rounding,
    recover,
)

from .run_parts import RunParts

# Parts of a boundary that depend on the process. How steps are logged, and the constants of a compiled step, do not show
# the numbers. The descriptions of fit and data are compared as the run is opened, in words that name the change. How a
# former unit deviated is taken over from the record. What a script has changed before its loop is in that unit's steps.
_OF_EACH_PROCESS = frozenset({"log", "traced", "identity", "data", "deviation", "script_changes", "restarts", REMEMBERED_NAMES})
_CALLBACK = "callback."  # what callbacks keep may be times that they have measured


@dataclass(frozen=True, slots=True)
class RecheckRules:
    """Rules of the comparison in one kind of loop.

    Attributes:
        set_back: called once the recorded state was set back, with what recovery has found; sets the state of the loop itself.
        refuted: texts of doubts that an equal unit shows to be unfounded.
        causes: usual causes of a difference, and what to do, by kind.
        is_quiet: whether nothing is printed.
        ignored: parts of a boundary that depend on the process, and paths in them. More may be added while the loop runs.
        times: names of measured times among what is not compared.
    """

    set_back: Callable[[Recovered], None]
    refuted: Collection[str] = ()
    causes: Mapping[str, str] = field(default_factory=lambda: CAUSES)
    is_quiet: bool = False
    ignored: set[str] = field(default_factory=set)
    times: Collection[str] = ()


class UnitRecheck(RecomputedUnit):
    """Compares the unit that is computed again, and sets the recorded state back where it differs.

    Args:
        parts: of the run.
        rules: of the loop.

    Attributes:
        deviation: how a unit first differed from its record, and True if the resume is not exact for it: in this process, or in
            a former one. Boundaries record it.
        end: the body of the boundary that ends the recorded unit; empty if no unit is computed again.
    """

    def __init__(self, parts: RunParts, rules: RecheckRules) -> None:
        super().__init__(parts.run, parts.journal, parts.report)
        self._parts, self._rules = parts, rules
        self.deviation: tuple[str, bool] | None = None
        self.end: dict[str, Any] = {}

    def begin(self, found: Recovered) -> None:
        """Let the journal compare the unit after the position where recovery has landed, if there is one to be computed."""
        if found.last_unit is None:
            return
        self._rules.ignored.update(_OF_EACH_PROCESS)
        recheck = self._begin(found.last_unit, found.position.step, self._rules.ignored, _CALLBACK)
        self.end = self._parts.state.decode_boundary(recheck.end)

    def take_over(self, deviation: tuple[str, bool] | None) -> None:
        """Take over that a former part of the run has deviated: what follows from it does, too."""
        self.deviation = deviation
        if deviation is not None:
            self._parts.report.warn(*deviation)

    def settle(self, position: dict[str, Any] | None, *, is_last: bool) -> bool:
        """Draw the conclusion at a boundary if the unit is over; return True if it is.

        Where something differs, the loop goes on to the place at which the record ends: it is not compared any more, and only
        there the recorded state fits the loop.

        Args:
            position: of the loop; None if the state of the boundary cannot be read.
            is_last: whether no other boundary follows.
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
            report.recheck, report.refuted = "equal", frozenset(self._rules.refuted)
            first = None if covered is None else covered.start.step + 1
            self._print(describe_equal(journal.step, times=self._rules.times, first=first))
            return
        report.recheck = "different"
        difference = recheck.difference
        assert difference is not None
        text = describe_difference(
            difference,
            causes=self._rules.causes,
            starts_over=report.starts_over,
            recomputed=covered,
        )
        if covered is None and position is not None and _place(position) != _place(self.end["position"]):
            here, there = _in_words(position), _in_words(self.end["position"])
            text += f". The loop stands at another place than the record: {here}, not {there}"
        if covered is None:
            self._set_back(recheck.unit)
        found = text, not (is_rounding(difference) or difference.may_be_time)
        self.deviation = self.deviation or found
        report.warn(*found)

    def _set_back(self, unit: LastUnit) -> None:
        """Bring everything to the newest boundary, as the log has it."""
        parts, end = self._parts, unit.end
        parts.backend.take_back(parts.model)
        folder = parts.journal.paths.folder
        found = recover(folder, parts.state, Target(sequence=end.sequence), spare=parts.resources.spare)
        assert found is not None, "a run with a checkpoint holds something"
        found.require_position(end)
        self.recovered = found
        self._rules.set_back(found)
        parts.steps.remember()

    def supersede(self) -> LastUnit:
        """Compare nothing, and let a new timeline begin where recovery has landed; return the unit that no longer counts."""
        return self._supersede()

    def abandon(self) -> None:
        """Bring everything to the newest boundary after all, before a loop begins."""
        self._set_back(self._give_up())

    def _print(self, text: str) -> None:
        if not self._rules.is_quiet:
            print(f"TranLogs: {self._parts.run}: {text}", file=sys.stderr, flush=True)


def _place(position: dict[str, Any]) -> tuple[int, int, int]:
    return position["total"], position["epoch"], position["batch"]


def _in_words(position: dict[str, Any]) -> str:
    return f"batch {position['batch']} of epoch {position['epoch'] + 1}"
