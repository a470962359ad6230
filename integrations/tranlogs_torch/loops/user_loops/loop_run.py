"""The run, as the loops of its script use it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tranlogs.training import Journal, LiveReport, Restarts

from ...state.auxiliary.auxiliary import Auxiliary


class LoopRun(Protocol):
    """A run as the loops of its script use it.

    Attributes:
        run: folder of the run.
        journal: journal of this process.
        auxiliary: auxiliary state with the positions in the tracked loaders.
        report: report of the recovery.
    """

    run: Path
    journal: Journal
    auxiliary: Auxiliary

    @property
    def report(self) -> LiveReport:
        """Report of the recovery."""
        ...

    @property
    def restarts(self) -> Restarts:
        """What names values of the script that start over."""
        ...

    @property
    def steps_since_boundary(self) -> int:
        """Number of steps and after-images since the last boundary."""
        ...

    @property
    def loops(self) -> list[object]:
        """The loops of `LoggedOptimizer` that are running, the outermost first."""
        ...

    @property
    def is_logging(self) -> bool:
        """True if training has begun, in this process, and the run is open."""
        ...

    def boundary(self, asking: object = None) -> None:
        """Commit what came since the last boundary: the loop `asking` wants its next batch."""
        ...

    def note_early_writes(self) -> None:
        """Report what was written between the recovery and the first batch."""
        ...

    def note_user_loop(self) -> None:
        """Note that a loop of the script's own resumes."""
        ...

    def remember(self) -> None:
        """Copy the state, before code per epoch runs again."""
        ...

    def go_live(self) -> None:
        """Undo what code per epoch did: the loop in which the run stood is about to be opened."""
        ...
