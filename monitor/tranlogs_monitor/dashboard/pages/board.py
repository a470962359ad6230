"""What the page is made of: the last evaluation of each journal, and the history that its catalog keeps."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from pathlib import Path

from tranlogs.base.errors import TranLogsError
from tranlogs.catalog import Catalog, EvaluationRow

from ...settings import Settings
from ...watching.watch import Seen


@dataclass(frozen=True, slots=True)
class Shown:
    """A journal.

    Attributes:
        name: its folder, as the monitor was given it.
        seen: its last evaluation that went well; None if none has.
        history: the evaluations that its catalog keeps, oldest first.
        problem: why the one after `seen` did not go well.
    """

    name: str
    seen: Seen | None = None
    history: tuple[EvaluationRow, ...] = ()
    problem: str = ""


class Board:
    """Written by the daemon's thread, which alone reads catalogs; read by those of the server.

    Attributes:
        settings: the daemon's.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._shown: dict[str, Shown] = {}

    def note(self, folder: Path, seen: Seen | str) -> None:
        """A journal was evaluated; or why it could not be."""
        name = str(folder)
        before = self._shown.get(name, Shown(name))
        now = Shown(name, seen, _history(folder) or before.history) if isinstance(seen, Seen) else replace(before, problem=seen)
        with self._lock:
            self._shown[name] = now

    def forget(self, folder: Path) -> None:
        """A journal is not watched any more."""
        with self._lock:
            self._shown.pop(str(folder), None)

    def journals(self) -> list[Shown]:
        """All of them, by name."""
        with self._lock:
            return [self._shown[name] for name in sorted(self._shown)]

    def journal(self, name: str) -> Shown | None:
        """One of them; the only one under any name that is empty."""
        with self._lock:
            if not name and len(self._shown) == 1:
                return next(iter(self._shown.values()))
            return self._shown.get(name)


def _history(folder: Path) -> tuple[EvaluationRow, ...]:
    """What the catalog keeps; nothing where it cannot be read now."""
    try:
        catalog = Catalog.open(folder)
    except (TranLogsError, OSError):
        return ()
    try:
        return tuple(catalog.read(lambda tables: tables.rows("evaluation/", EvaluationRow)))
    except TranLogsError:
        return ()
    finally:
        catalog.close()
