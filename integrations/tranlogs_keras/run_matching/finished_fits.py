"""The fits that this process has finished, by run: a script may give each of its fits a callback of its own."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

from tranlogs.base.errors import UsageError
from tranlogs.training import RecoveryReport


class FinishedFits:
    """The number of fits that ended in this process, their model, and the report of the process's recovery, by run."""

    def __init__(self) -> None:
        self._by_run: dict[Path, tuple[weakref.ref[Any], int]] = {}
        self._reports: dict[Path, RecoveryReport] = {}

    def count(self, run: Path, model: Any) -> int:
        """Return how many fits of the model were logged to the run by this process and have ended."""
        if not run.exists():  # deleted since
            self._by_run.pop(run.resolve(), None)
            self._reports.pop(run.resolve(), None)
        known, fits = self._by_run.get(run.resolve(), (None, 0))
        return fits if known is not None and known() is model else 0

    def note(self, run: Path, model: Any, fits: int, report: RecoveryReport | None) -> None:
        """Record that so many fits of the model have ended, and the report with which the last one ended."""
        self._by_run[run.resolve()] = weakref.ref(model), fits
        if report is not None and report.checkpoint_step is not None:
            self._reports[run.resolve()] = report

    def find_report(self, run: Path) -> RecoveryReport | None:
        """Return the report of the recovery from which this process has continued the run; None if it has begun the run."""
        return self._reports.get(run.resolve())

    def check(self, run: Path, model: Any) -> None:
        """Refuse a run to which another model was fitted in this process.

        Raises:
            UsageError: there was one. Its weights would be taken for this model's without any training.
        """
        known, _ = self._by_run.get(run.resolve(), (None, 0))
        if known is not None and known() is not model:
            raise UsageError(
                f"{run}: this process has already fitted another model to this run, and would give its result to this model "
                "without training it. Give each model a folder of its own (a loop over seeds, folds or trials: one for each "
                "turn). For further fits of one model pass the same callback object"
            )
