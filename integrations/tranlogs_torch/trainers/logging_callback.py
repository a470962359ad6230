"""The base class of the trainers' callbacks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tranlogs.base.errors import UsageError
from tranlogs.training import RecoveryReport

from ..optimizer import LoggedOptimizer

FINISHED = "the run is finished, and nothing is trained (for another training, give another folder)"


class LoggingCallback:
    """A callback that logs the training of a trainer into a run.

    Args:
        run: folder of the run.
        settings: for `LoggedOptimizer`.
    """

    def __init__(self, run: str | Path, settings: dict[str, Any]) -> None:
        self._run, self._settings = Path(run), settings
        self._logged: LoggedOptimizer | None = None
        self._turns: Iterator[int] = iter(())
        self._is_open = self._has_begun = False
        self._is_finished = False  # whether nothing was left to train when this process began

    @property
    def optimizer(self) -> LoggedOptimizer:
        """The logged optimizer, from the beginning of training on: `report`, `watermarks`, `run_id`, `checkpoint()`.

        Raises:
            UsageError: nothing was trained yet.
        """
        if self._logged is None:
            raise UsageError(f"{self._run}: no step has been taken yet")
        return self._logged

    @property
    def report(self) -> RecoveryReport:
        """The report of the recovery, as `LoggedOptimizer.report` has it; with a note if nothing is left to train."""
        return replace(self.optimizer.report, end=FINISHED if self._is_finished else "")
