"""The newest unit before a crash, which the script's own loop computes again: what all integrations do with it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from ..base.notes import Note
from ..journal.journal import Journal
from ..log.record_format import Position
from ..recovery.history import LastUnit
from ..recovery.recover import Recovered
from .live_report import LiveReport
from .recheck import Recheck, RecomputedSteps, UnitComparison
from .recheck_messages import CHANGED_BEFORE, PENDING, describe_recomputing, describe_unfinished, find_strangers


class RecomputedUnit:
    """The unit that is computed again: begun, given up, or left unfinished. A subclass draws the conclusion.

    Args:
        run: folder of the run.
        journal: compares the steps.
        report: of the recovery.

    Attributes:
        recovered: the recovery that set the recorded state back; None if that was not necessary.
        wants_checkpoint: True if a checkpoint is wanted of what was computed again up to the boundary that was just compared.
            Processes that train together all want it or none.
    """

    def __init__(self, run: Path, journal: Journal, report: LiveReport) -> None:
        self._run, self._journal, self._report = run, journal, report
        self._recheck: UnitComparison | None = None
        self._shown_at = time.monotonic()
        self.recovered: Recovered | None = None
        self.wants_checkpoint = False

    @property
    def compared(self) -> tuple[int, float]:
        """The number of steps that are equal, and the seconds that it took to compare them."""
        return (0, 0.0) if self._recheck is None else (self._recheck.compared, self._recheck.seconds)

    @property
    def is_pending(self) -> bool:
        """True while the unit is computed."""
        return self._recheck is not None and self._report.recheck == "pending"

    @property
    def is_covered(self) -> bool:
        """True while steps are computed again of which the log has no tensors."""
        return self.is_pending and self._recheck is not None and self._recheck.unit.is_covered

    def wants(self, step: int, passes: int) -> bool:
        """Return True if the boundary that comes now is compared with a record; see `UnitComparison.wants`."""
        assert self._recheck is not None
        if self._recheck.unit.is_covered:
            self._show_progress(step, self._recheck.unit)
        return self._recheck.wants(step, passes)

    def _show_progress(self, step: int, unit: LastUnit) -> None:
        """Show on a terminal, once a second, how far the loop has come."""
        now, total = time.monotonic(), unit.end.step - unit.start.step
        if now - self._shown_at < 1.0 or not sys.stderr.isatty():
            return
        self._shown_at = now
        text = f"computing {total} steps again that were finished before the crash: {step - unit.start.step}"
        print(f"\rTranLogs: {self._run}: {text}", end="", file=sys.stderr, flush=True)

    def find_equal(self, step: int) -> Position | None:
        """Return the position of the recorded boundary after `step`, if it was just computed again and is equal; else None."""
        recheck = self._recheck
        if recheck is None or not self.is_covered or recheck.is_over:
            return None
        return recheck.equal if recheck.equal.step == step > recheck.unit.start.step else None

    def describe_pending(self) -> Note:
        """Return the note on the unit that is being computed."""
        assert self._recheck is not None
        return describe_recomputing(self._recheck.unit) if self.is_covered else PENDING

    def find_obstacle(self, unit: LastUnit) -> str:
        """Return why the unit cannot be computed again, or is known to come out otherwise; "" if it may be equal."""
        recorded = Recheck(unit)
        try:
            if recorded.read_recorded("script_changes"):
                return CHANGED_BEFORE
            return self._find_other_obstacle(recorded.read_recorded)
        finally:
            recorded.close()

    def _find_other_obstacle(self, read_recorded: Callable[[str], Any]) -> str:
        """Return what the framework has against it, given a function that reads parts of the recorded boundary."""
        return ""

    def ignore(self, path: str) -> None:
        """Do not compare a path in boundaries."""
        if self._recheck is not None:
            self._recheck.ignore((path,))

    def ignore_strangers(self, landed: Mapping[str, Any], end: Mapping[str, Any], tracked: Mapping[str, Any]) -> None:
        """Do not compare what only the script has, or only the run: it starts over, or does not come back, and is named.

        Args:
            landed: recorded states of tracked objects where recovery has landed.
            end: those at the end of the unit, which another script than the present one may have written.
            tracked: the objects that the script tracks.
        """
        if self._recheck is not None:
            self._recheck.ignore(find_strangers(landed, tracked) | find_strangers(end, tracked))

    def _begin(self, unit: LastUnit, step: int, ignored: Collection[str], timed: str | None = None) -> UnitComparison:
        """Let the journal compare the unit behind `step`; see `UnitComparison`."""
        compare = RecomputedSteps if unit.is_covered else Recheck
        self._recheck = recheck = compare(unit, ignored, timed)
        recheck.read_ahead()
        self._journal.holds.hold()
        self._journal.begin_recheck(recheck, step)
        self._report.recheck = "pending"
        return recheck

    def _end(self, equal: Position | None = None, number: int | None = None) -> None:
        """Let the journal log again. What the loop has computed holds where the log has no tensors and something differs.

        Args:
            equal: the newest boundary that is equal on all ranks; None in a process alone.
            number: of the timeline that all of them begin behind it.
        """
        recheck, journal = self._recheck, self._journal
        assert recheck is not None
        if recheck.unit.is_covered and sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        if recheck.unit.is_covered and (equal is not None or not recheck.is_equal):
            step = journal.step
            journal.log.fork(equal or recheck.equal, number)
            journal.end_recheck(step)
        else:
            journal.end_recheck()

    def _give_up(self) -> LastUnit:
        """Compare nothing more; return the recorded unit."""
        assert self._recheck is not None
        self._journal.end_recheck()
        self._recheck.close()
        self._report.recheck = ""
        return self._recheck.unit

    def _supersede(self, number: int | None = None) -> LastUnit:
        """Compare nothing more, and let a new timeline begin before the unit. Return the unit."""
        assert self._recheck is not None
        self._journal.log.fork(self._recheck.unit.start, number)
        return self._give_up()

    def note_end(self) -> None:
        """Report at the end of the script that its loop has not computed the unit."""
        if self._recheck is not None and self.is_pending:
            self._report.warn(describe_unfinished(self._run, self._recheck.unit), False)

    def close(self) -> None:
        """Close the files of the recorded unit."""
        if self._recheck is not None:
            self._recheck.close()
