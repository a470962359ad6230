"""The journals that pages show: the last evaluation of each, and their history."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from pathlib import Path

from tranlogs.retention.value_decay import EvaluationRow, read_evaluations

from ...settings import DaemonSettings
from ...watching.watch import Evaluation


@dataclass(frozen=True, slots=True)
class JournalView:
    """A journal as pages show it: its folder, as it was given to the monitor, and the evaluations that are kept, oldest first.

    `evaluation` is the last successful one, None if there was none. `problem` is why a later one failed, "" if none failed.
    """

    name: str
    evaluation: Evaluation | None = None
    history: tuple[EvaluationRow, ...] = ()
    problem: str = ""


class Board:
    """The journals of all pages. The daemon's thread writes it and alone reads journals; the server's threads read it."""

    def __init__(self, settings: DaemonSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._views: dict[str, JournalView] = {}

    def note(self, folder: Path, evaluation: Evaluation | str) -> None:
        """Record an evaluation of a journal, or why it failed."""
        name = str(folder)
        before = self._views.get(name, JournalView(name))
        now = (
            JournalView(name, evaluation, tuple(read_evaluations(folder)) or before.history)
            if isinstance(evaluation, Evaluation)
            else replace(before, problem=evaluation)
        )
        with self._lock:
            self._views[name] = now

    def forget(self, folder: Path) -> None:
        """Drop a journal that is not watched any more."""
        with self._lock:
            self._views.pop(str(folder), None)

    def journals(self) -> list[JournalView]:
        """Return all journals, by name."""
        with self._lock:
            return [self._views[name] for name in sorted(self._views)]

    def journal(self, name: str) -> JournalView | None:
        """Return the journal with this name, or None. An empty name returns the only journal if there is exactly one."""
        with self._lock:
            if not name and len(self._views) == 1:
                return next(iter(self._views.values()))
            return self._views.get(name)
