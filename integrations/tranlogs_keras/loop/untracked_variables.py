"""Doubts of a run: Keras variables that a loop writes and nobody has given to the run (metrics, seeds, a model)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from typing import Any

import keras

from tranlogs.base.notes import Note
from tranlogs.training import LiveReport

from ..backends import Backend
from ..state.state import digest

_BOUNDARIES = 4  # at which they are looked at: one is the first
_BYTES_MAX = 1 << 20  # of a variable


def _find_variables() -> list[Any]:
    """Return all variables that are alive: what refers to their classes, as every instance does.

    The class of another object is not asked for by `isinstance`, which lets lazy modules and deprecated names act and warn.
    """
    kinds = _list_kinds(keras.Variable)
    return [item for item in gc.get_referrers(*kinds) if type(item) in kinds]


def _list_kinds(kind: type) -> list[type]:
    derived: list[type] = kind.__subclasses__()
    return [kind, *(further for one in derived for further in _list_kinds(one))]


class UntrackedVariables:
    """Finds variables whose values change between the first boundaries of a process and that the run does not know."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._left = _BOUNDARIES
        self._seen: dict[int, tuple[weakref.ref[Any], int]] = {}

    def find_changed(self, known: Iterable[Any]) -> list[str]:
        """Return the paths of unknown variables that have changed since the last call."""
        if not self._left:
            return []
        self._left -= 1
        ids, changed = set(map(id, known)), []
        now: dict[int, tuple[weakref.ref[Any], int]] = {}
        for variable in _find_variables() if self._left else self._list_seen():
            if id(variable) in ids or variable._value is None:
                continue
            value = self._backend.value_of(variable)
            if value.nbytes > _BYTES_MAX:
                continue
            now[id(variable)] = weakref.ref(variable), digest(value)
            before = self._seen.get(id(variable))
            if before is not None and before[0]() is variable and before[1] != now[id(variable)][1]:
                changed.append(str(getattr(variable, "path", "")))
        self._seen = now if self._left else {}
        return changed

    def _list_seen(self) -> list[Any]:
        """Return the variables of the last call: at the last boundary, others have nothing to be compared with."""
        return [variable for reference, _ in self._seen.values() if (variable := reference()) is not None]


class RecordedDoubts:
    """The doubts of a run. Those that are new go into the report."""

    def __init__(self, report: LiveReport) -> None:
        self._report = report
        self._notes: list[Note] = []
        self._untracked: UntrackedVariables | None = None

    def name_untracked(self, backend: Backend, known: Iterable[Any]) -> None:
        """Name the Keras variables that the loop has written since the last call and that are not among the known ones."""
        self._untracked = self._untracked or UntrackedVariables(backend)
        for path in self._untracked.find_changed(known):
            line = "Give what holds it (a metric, a seed generator, a model) to optimizer.track(name=...) before the loop"
            text = f"the loop writes {path}, which the run does not know: it is not brought back"
            self.add(Note("not-recovered", text, line))

    def add(self, note: Note) -> None:
        """Add a doubt, and report it."""
        if note not in self._notes:
            self._notes.append(note)
            self._report.warn(note, False)

    def note(self, *notes: Note) -> None:
        """Add doubts that are reported already, or not yet."""
        self._notes = list(dict.fromkeys([*self._notes, *notes]))

    def withdraw(self, note: Note) -> None:
        """Remove a doubt from what the next boundaries hold."""
        if note in self._notes:
            self._notes.remove(note)

    def read(self) -> list[Any]:
        """Return what a boundary holds of the doubts."""
        return [note.pack() for note in self._notes]

    def take_over(self, *recorded: Iterable[Any]) -> None:
        """Take the doubts of recorded boundaries, and report all."""
        for packed in recorded:
            self.note(*(Note(*one) for one in packed))
        for note in self._notes:
            self._report.warn(note, False)
