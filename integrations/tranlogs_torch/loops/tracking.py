"""Declarations of a script and its trainer: state to be kept, and values that a recheck leaves out."""

from __future__ import annotations

from typing import Any

from tranlogs.training import Remembered, path_of_remembered

from ..state.auxiliary.tracked_objects import REMEMBERED
from .recovery.recovery import Recovery
from .run_parts import RunParts


class Tracking:
    """Takes the declarations of a script.

    Args:
        parts: of the run.
        recovery: receives the names, and makes its report again, since state that was missing may be tracked now.
    """

    def __init__(self, parts: RunParts, recovery: Recovery) -> None:
        self._parts, self._recovery = parts, recovery

    def track(self, **things: Any) -> None:
        """Track loaders and anything with state_dict / load_state_dict; refuse what cannot be stored."""
        auxiliary = self._parts.auxiliary
        for name, thing in things.items():
            auxiliary.track(name, thing)
        self._recovery.note_tracked(auxiliary.tracked.keys() & things.keys())
        self._recovery.report.refresh()

    def remember_values(self, values: dict[str, Any]) -> Remembered:
        """Remember attributes of the loop's namespace; refuse what cannot be stored."""
        found = self._parts.auxiliary.remember(values)
        self._recovery.note_tracked([REMEMBERED])
        self._recovery.report.refresh()
        return found

    def remember_times(self, values: dict[str, Any]) -> Remembered:
        """Remember attributes that are times which the script measures: no unit that is computed again has them equal."""
        self._recovery.recheck.times += values
        for name in values:
            self.ignore_in_recheck(path_of_remembered(name))
        return self.remember_values(values)

    def ignore_in_recheck(self, path: str) -> None:
        """Leave a value of boundaries ("tracked.learning") out when a unit is computed again: it holds wall-clock times."""
        self._recovery.recheck.ignored.add(path)
        self._recovery.recheck.ignore(path)  # also where the script calls this after recover()
