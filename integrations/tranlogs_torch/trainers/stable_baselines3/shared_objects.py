"""State that the values of an object's attributes do not show: which of them are one object, and what its classes hold."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

import numpy as np

from tranlogs.records import tree

from ...tensors import arrays
from .values import NO_LIMIT, STATEFUL, Unstorable, digest, is_scalar, stored

_VISITED_MAX = 1000  # containers in which the same object is looked for
_LIBRARIES = ("gymnasium", "stable_baselines3", "typing", "abc", "builtins")
_ARRAYS_MAX = 16  # of one object, of which it is asked whether they share memory


def shared_arrays(owner: Any, skipped: frozenset[str] = frozenset()) -> list[str]:
    """Return pairs of attributes of an object that are arrays in the same memory, as text."""
    found = [(name, value) for name, value in vars(owner).items() if name not in skipped and isinstance(value, np.ndarray)]
    pairs = itertools.combinations(found[:_ARRAYS_MAX], 2)
    return [f"{a} and {b}" for (a, x), (b, y) in pairs if np.may_share_memory(x, y)]


def nested_twins(owner: Any, skipped: frozenset[str] = frozenset()) -> list[str]:
    """Return pairs of places within the attributes of an object that hold the same container or array, as text.

    Wrappers of the libraries replace the arrays that they hold, and do not write to them: there it makes no difference whether
    two places hold the same array.
    """
    if type(owner).__module__.partition(".")[0] in _LIBRARIES:
        return []
    first: dict[int, str] = {}
    waiting = [(name, value) for name, value in vars(owner).items() if name not in skipped]
    found, visited = [], 0
    while waiting and visited < _VISITED_MAX:
        path, value = waiting.pop(0)
        if not isinstance(value, (list, tuple, dict, set, deque, np.ndarray)):
            continue
        visited += 1
        if id(value) in first and not isinstance(value, tuple):
            if "[" in path:
                found.append(f"{first[id(value)]} and {path}")
            continue
        first[id(value)] = path
        if isinstance(value, (list, tuple, deque)):
            waiting += [(f"{path}[{number}]", item) for number, item in enumerate(value)]
        elif isinstance(value, dict):
            waiting += [(f"{path}[{key!r}]", item) for key, item in value.items()]
    return found


def class_values(owner: Any, path: str) -> int:
    """Return a digest of what the classes of an object hold: it belongs to no object, and is not recovered.

    Raises:
        Unstorable: a class has slots, which are no attributes that can be read.
    """
    found = []
    for kind in type(owner).__mro__[:-1]:
        if kind.__module__.partition(".")[0] in _LIBRARIES:
            continue
        if vars(kind).get("__slots__"):
            raise Unstorable(f"{path} has __slots__")
        for name, value in vars(kind).items():
            if not name.startswith("__") and (is_scalar(value) or isinstance(value, (*STATEFUL, np.ndarray))):
                found.append([name, _stored_or_none(value)])
    return digest(tree.encode(found, adapt=arrays.adapt))


def _stored_or_none(value: Any) -> Any:
    try:
        return stored(value, "", NO_LIMIT)
    except Unstorable:
        return None
