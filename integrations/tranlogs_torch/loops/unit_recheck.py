"""The newest unit before a crash, which the script's own loop computes again: what follows from the comparison."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tranlogs.training import (
    UNKNOWN_DATA,
    Recheck,
    Recovered,
    describe_difference,
    describe_equal,
    describe_unfinished,
    is_rounding,
    recover,
)

from ..state.caveats import CARRIED, IMPLICIT
from .run_parts import RunParts

# Parts of a boundary that depend on the process: where it began, whether it has learned that gradients are cleared before the
# next step (the gradients themselves are compared with each step), and how an earlier unit differed.
_OF_EACH_PROCESS = ("start_rng", "flags", "waiting", "deviation")
REFUTED = frozenset({UNKNOWN_DATA, CARRIED})  # doubts about what the loop keeps, which an equal unit removes


class UnitRecheck:
    """Compares the unit that is computed again, and sets the recorded state back where it differs.

    Args:
        parts: of the run.
        on_set_back: called when the recorded state was set back in the middle of a loop.

    Attributes:
        recovered: the recovery that set the recorded state back; None if that was not necessary.
        ignored: paths in the body of a boundary that are not compared: wall-clock times of a trainer, and what depends on the
            process.
    """

    def __init__(self, parts: RunParts, on_set_back: Callable[[], None]) -> None:
        self._parts, self._on_set_back = parts, on_set_back
        self._recheck: Recheck | None = None
        self.ignored = set(_OF_EACH_PROCESS)
        self.recovered: Recovered | None = None

    @property
    def compared(self) -> tuple[int, float]:
        """The number of steps that are equal, and the seconds that it took to compare them."""
        return (0, 0.0) if self._recheck is None else (self._recheck.steps, self._recheck.seconds)

    def begin(self, found: Recovered) -> None:
        """Let the journal compare the unit behind the position where recovery has landed, if there is one to be computed."""
        if found.last_unit is None:
            return
        # A resume may add to what is doubted of a loader (random numbers of its workers).
        doubts = {f"data.{name}.doubts" for name in self._parts.auxiliary.read_data()}
        self._recheck = Recheck(found.last_unit, self.ignored | doubts)
        self._parts.auxiliary.deviation = self._recheck.read_recorded("deviation")
        self._parts.journal.holds.hold()
        self._parts.journal.begin_recheck(self._recheck, found.position.step)
        self._parts.report.recheck = "pending"

    def settle(self) -> bool:
        """Draw the conclusion at a boundary if the unit is over; return True if it is."""
        recheck, report, journal = self._recheck, self._parts.report, self._parts.journal
        if recheck is None or report.recheck != "pending" or not recheck.is_over:
            return False
        journal.end_recheck()
        recheck.close()
        if recheck.is_equal:
            # How many turns are left of a loop of the script's own is known if it keeps its state in the run.
            refuted = REFUTED | {IMPLICIT} if self._parts.auxiliary.is_loop_remembered else REFUTED
            report.recheck, report.refuted = "equal", refuted
            self._say(describe_equal(journal.step))
            return True
        report.recheck = "different"
        assert recheck.difference is not None
        self._set_back()
        found = describe_difference(recheck.difference), not is_rounding(recheck.difference)
        self._parts.auxiliary.deviation = self._parts.auxiliary.deviation or found
        report.warn(*found)
        return True

    @property
    def is_pending(self) -> bool:
        """True until the unit was computed."""
        return self._recheck is not None and self._parts.report.recheck == "pending"

    def abandon(self) -> Recovered:
        """Recover to the newest boundary after all, before a loop begins."""
        assert self._recheck is not None
        self._parts.journal.end_recheck()
        self._recheck.close()
        self._parts.report.recheck = ""
        return self._recover_end()

    def note_end(self) -> None:
        """Report at the end of the script that its loop has not computed the unit."""
        if self._recheck is not None and self.is_pending:
            self._parts.report.warn(describe_unfinished(self._parts.settings.run, self._recheck.unit), False)

    def _set_back(self) -> None:
        """Bring everything to the newest boundary in the middle of a loop."""
        self.recovered = self._recover_end()
        self._on_set_back()

    def _recover_end(self) -> Recovered:
        """Bring everything to the boundary that ends the unit, which is the newest one, as the log has it."""
        parts = self._parts
        assert self._recheck is not None
        end = self._recheck.unit.end
        found = recover(parts.journal.paths.folder, parts.state, sequence=end.sequence, spare=parts.resources.spare)
        assert found is not None, "a run with a unit holds something"
        found.require_position(end)
        parts.scalars.extend(found.scalars)
        parts.state.refresh()
        parts.writes.remember(parts.journal.step)
        return found

    def _say(self, text: str) -> None:
        if self._parts.coordinator.rank == 0:
            print(f"TranLogs: {self._parts.settings.run}: {text}", file=sys.stderr, flush=True)
