"""Keras variables that a loop writes and that nobody has given to the run: metrics, seeds, another model."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from typing import Any

import keras

from ..backends import Backend
from ..state.fingerprint import digest

_BOUNDARIES = 4  # at which they are looked at: one is the first
_BYTES_MAX = 1 << 20  # of a variable


def _variables() -> list[Any]:
    return [item for item in gc.get_objects() if isinstance(item, keras.Variable)]


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
        for variable in _variables():
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
