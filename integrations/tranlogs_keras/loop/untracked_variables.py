"""Doubts of a run, in words: Keras variables that a loop writes and nobody has given to the run (metrics, seeds, a model)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from typing import Any

import keras

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
    """The doubts of a run, in words.

    Those that are new go into the report.
    """

    def __init__(self, report: LiveReport) -> None:
        self._report = report
        self.texts: list[str] = []

    def add(self, text: str) -> None:
        """Add a doubt, and report it."""
        if text not in self.texts:
            self.texts.append(text)
            self._report.warn(text, False)

    def note(self, *texts: str) -> None:
        """Add doubts that are reported already, or not yet."""
        self.texts = list(dict.fromkeys([*self.texts, *texts]))

    def withdraw(self, text: str) -> None:
        """Remove a doubt from what the next boundaries hold."""
        if text in self.texts:
            self.texts.remove(text)

    def take_over(self, *recorded: Iterable[str]) -> None:
        """Take the doubts of recorded boundaries, and report all."""
        for texts in recorded:
            self.note(*texts)
        for text in self.texts:
            self._report.warn(text, False)
