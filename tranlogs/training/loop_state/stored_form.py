"""The form in which values of a loop are stored: values of `tranlogs.encoding.tree`, and tuples with a tag.

| stored | stands for |
|---|---|
| number, str, bytes, None | itself |
| list; dict whose keys are of these types | itself, its items in stored form |
| array, tensor of the CPU | itself |
| ("tuple", items), ("frozenset", items), ("set", items) | itself; items of sets are sorted |
| ("dict" or "OrderedDict" or "Counter", pairs) | a dict with any other keys, and its subclasses |
| ("defaultdict", factory, pairs) | the factory is a name of `FACTORIES`, or ".NAME" of a given one |
| ("deque", maxlen, items), ("bytearray", bytes), ("range", start, stop, step) | itself |
| ("namedtuple", module, qualname, fields, items) | of a class that the script has imported or made |
| ("numbers", "float" or "int", count, blocks, bytes, last bytes) | a long list of floats, or ints (number_lists.py) |
| ("text", dtype, shape or None, bytes) | a numpy array, or scalar, of strings or times |
| ("fortran", array) | an array in Fortran's order, stored transposed |
| ("numpy.Generator" or "numpy.RandomState" or "random.Random", state) | a random generator |
| ("object", name) | an object with a state that the script has given to `remember` under this name |
| ("same", number) | the value that was stored with this number, counted as they are met, over those of `is_counted` |
| (a framework's tag, ...) | a framework's value, such as a tensor of another device |
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import numpy as np

SCALARS = frozenset({bool, int, float, complex, str, bytes, type(None)})
FACTORIES: dict[str, Any] = {kind.__name__: kind for kind in (list, dict, set, deque, int, float, str, bool)} | {"None": None}
GENERATORS: tuple[type, ...] = (np.random.Generator, np.random.RandomState, random.Random)
BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
_WITH_ITEMS = frozenset({"tuple", "frozenset", "set", "deque", "namedtuple"})
_WITH_PAIRS = frozenset({"dict", "OrderedDict", "Counter", "defaultdict"})


class Unstorable(Exception):
    """A value cannot be stored, or a stored one cannot be made again.

    Attributes:
        path: of the value.
        value: the value.
        reason: a predicate that follows the path in a sentence.
    """

    def __init__(self, reason: str, path: str = "", value: object = None) -> None:
        super().__init__(f"{path} {reason}")
        self.path, self.value, self.reason = path, value, reason


class FrameworkValues(Protocol):
    """A framework's knowledge of its own values."""

    def store(self, value: Any) -> Any:
        """Return the stored form of a framework's value; None for any other value.

        Raises:
            Unstorable: the value is a framework's, and cannot be stored.
        """
        ...

    def count_bytes(self, value: Any) -> int:
        """Return the size of the tensor that a stored value holds."""
        ...

    def restore(self, old: Any, stored: Any) -> Any:
        """Return the value of a stored one; `old` is what the script has in its place, and may be set and returned."""
        ...

    def adapt(self, value: Any) -> Any:
        """Prepare a stored value for the encoder of trees."""
        ...


@dataclass(slots=True)
class Given:
    """Objects with a state, and functions, that a script creates again at each start. `remember` was given them.

    Attributes:
        objects: by name.
        factories: functions that make the missing values of a defaultdict, by name.
    """

    objects: dict[str, Any] = field(default_factory=dict)
    factories: dict[str, Callable[[], Any]] = field(default_factory=dict)

    def name_of(self, thing: Any) -> str | None:
        """Return the name of an object or of a function."""
        both = (*self.objects.items(), *self.factories.items())
        return next((name for name, known in both if known is thing), None)


def is_counted(stored: Any) -> bool:
    """Return True if a stored value has a number: all but scalars, and references to other values."""
    kind = type(stored)
    return kind not in SCALARS and not isinstance(stored, np.generic) and not (kind is tuple and stored[0] == "same")


def count_numbers(stored: Any) -> int:
    """Return how many numbers a stored value has with its parts."""
    if not is_counted(stored):
        return 0
    parts: Iterable[Any] = ()
    if type(stored) is list:
        parts = stored
    elif type(stored) is dict:
        parts = stored.values()
    elif type(stored) is tuple and stored[0] in _WITH_ITEMS:
        parts = stored[-1]
    elif type(stored) is tuple and stored[0] in _WITH_PAIRS:
        parts = chain.from_iterable(stored[-1])
    return 1 + sum(map(count_numbers, parts))


def state_methods(thing: Any) -> tuple[str, str] | None:
    """Return the names of the methods by which an object gives and takes its state."""
    for get, put in (("state_dict", "load_state_dict"), ("get_state", "set_state")):
        if callable(getattr(thing, get, None)) and callable(getattr(thing, put, None)):
            return get, put
    return None
