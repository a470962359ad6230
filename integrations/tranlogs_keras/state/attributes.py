"""Changed attributes of an object of the user's (a PyDataset), such as an order of samples or a generator."""

from __future__ import annotations

from typing import Any

import numpy as np

from tranlogs.base.errors import UnencodableState
from tranlogs.records import tree

from ..backends.arrays import adapt
from .callbacks import packed, unpacked
from .fingerprint import digest
from .stateful_values import content_of, is_content, is_random, set_content


class Attributes:
    """The attributes of an object that have changed since this was made; arrays are compared by digest.

    Attributes:
        lost: names of those that have changed and cannot be stored.
    """

    def __init__(self, thing: Any) -> None:
        self._thing = thing
        self._given = {name: _mark(value) for name, value in vars(thing).items()}
        self._carried: set[str] = set()
        self.lost: set[str] = set()

    def read(self) -> dict[str, Any]:
        """Return the attributes that have changed, in a form that can be encoded."""
        found = {}
        for name, value in vars(self._thing).items():
            mark = _mark(value)
            if mark is None:
                self.lost |= {name} if self._given.get(name) is not None else set()
                continue
            if name in self._carried or mark != self._given.get(name):
                found[name] = _stored(value)
                self._carried.add(name)  # kept, or a process that continues here would record more than this one
        return found

    def random_states(self) -> dict[str, Any]:
        """Return the states of the attributes that are random generators."""
        held = {name: content_of(value) for name, value in vars(self._thing).items() if is_random(value)}
        return {name: content.value for name, content in held.items() if content is not None}

    def write(self, recorded: dict[str, Any]) -> None:
        """Set them."""
        for name, value in recorded.items():
            _restore(self._thing, name, value)
        self._carried = set(recorded)


def _mark(value: Any) -> Any:
    """Return a mark by which a value is compared; None if it cannot be stored."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, digest(value)) if value.dtype.kind in "biufc" else None
    try:
        return tree.encode(_stored(value), adapt=adapt)
    except (UnencodableState, RecursionError, TypeError):
        return None


def _stored(value: Any) -> Any:
    content = content_of(value)
    return packed(value) if content is None else content


def _restore(thing: Any, name: str, value: Any) -> None:
    if not is_content(value):
        setattr(thing, name, unpacked(value))
    else:
        set_content(thing, name, value)
