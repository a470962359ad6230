"""Values of a loop from stored ones.

Containers, generators and objects that the script has made in a value's place are filled, so that what else refers to them
goes on with them. Arrays and tensors are new: what the script has made may be a view of its data, which nobody may overwrite.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy as np

from ..rng import SplitPython, join_python
from .number_lists import NUMBERS, restore_numbers
from .storing import (
    BIT_GENERATORS,
    FACTORIES,
    SCALARS,
    FrameworkValues,
    Given,
    Unstorable,
    count_numbers,
    is_counted,
    state_methods,
)

_DAMAGED = (KeyError, IndexError, TypeError, ValueError, AttributeError)  # of a record that another program has written
_LOST = object()


class Restorer:
    """Restores the values that one `Storer` has stored, in the same order.

    Args:
        framework: knows the framework's values.
        given: objects and functions that the script has made.
    """

    def __init__(self, framework: FrameworkValues, given: Given) -> None:
        self._framework, self._given = framework, given
        self._made: list[Any] = []  # by number
        self._used: set[int] = set()  # ids of what was filled

    def restore(self, old: Any, stored: Any, path: str) -> Any:
        """Return the value of a stored one; `old` is what the script has in its place.

        Raises:
            Unstorable: it cannot be made again.
        """
        number = len(self._made)
        try:
            return self._restore(old, stored)
        except (Unstorable, *_DAMAGED) as error:
            self._made[number:] = [_LOST] * count_numbers(stored)  # others keep their numbers
            text = error.reason if isinstance(error, Unstorable) else f"cannot be made of what the run has: {error!r}"
            raise Unstorable(text, path, stored) from None

    def restore_states(self, states: dict[str, Any]) -> list[Unstorable]:
        """Give the script's objects their states, by name; return the errors of those that are not there."""
        errors = []
        for name, stored in states.items():
            path = f"state.{name}"
            try:
                state = self.restore(None, stored, path)
                thing = self._given.objects.get(name)
                methods = state_methods(thing)
                if methods is None:
                    raise Unstorable("is an object that the script has not given to remember(...)", path)
                getattr(thing, methods[1])(state)
            except Unstorable as error:
                errors.append(error)
        return errors

    def _restore(self, old: Any, stored: Any) -> Any:
        if not is_counted(stored):
            return self._earlier(stored[1]) if type(stored) is tuple else stored
        number = len(self._made)
        self._made.append(None)
        self._made[number] = found = self._make(old, stored)
        return found

    def _earlier(self, number: int) -> Any:
        if self._made[number] is _LOST:
            raise Unstorable("refers to a value that cannot be made again")
        return self._made[number]

    def _make(self, old: Any, stored: Any) -> Any:
        kind = type(stored)
        if kind is list:
            return self._list(old, stored)
        if kind is dict:
            return self._dict(old, list(stored.items()))
        if kind is tuple and stored[0] in _MAKERS:
            return _MAKERS[stored[0]](self, old, *stored[1:])
        if kind is np.ndarray:
            return stored.copy()
        return self._framework.restore(old if self._is_free(old) else None, stored)

    def _is_free(self, old: Any, kind: type | None = None) -> bool:
        """Return True if what is there can be filled: it is of the kind, and no other value was filled into it."""
        if (kind is not None and type(old) is not kind) or id(old) in self._used:
            return False
        self._used.add(id(old))
        return True

    # Containers

    def _items(self, old: Any, stored: list[Any]) -> list[Any]:
        there = list(old) if isinstance(old, list | tuple | deque) else []
        return [self._restore(there[i] if i < len(there) else None, item) for i, item in enumerate(stored)]

    def _list(self, old: Any, stored: list[Any]) -> Any:
        target: list[Any] = old if self._is_free(old, list) else []
        target[:] = self._items(old, stored)
        return target

    def _numbers(self, old: Any, *stored: Any) -> Any:
        target: list[Any] = old if self._is_free(old, list) else []
        target[:] = restore_numbers(*stored)
        return target

    def _deque(self, old: Any, maxlen: int | None, stored: list[Any]) -> Any:
        is_alike = type(old) is deque and old.maxlen == maxlen
        target: deque[Any] = old if is_alike and self._is_free(old) else deque(maxlen=maxlen)
        items = self._items(old, stored)
        target.clear()
        target.extend(items)
        return target

    def _tuple(self, old: Any, stored: list[Any]) -> Any:
        return tuple(self._items(old, stored))

    def _named_tuple(self, old: Any, module: str, name: str, fields: list[str], stored: list[Any]) -> Any:
        kind: Any = sys.modules.get(module)
        for part in name.split("."):
            kind = vars(kind).get(part) if hasattr(kind, "__dict__") else None
        if not (isinstance(kind, type) and issubclass(kind, tuple) and list(getattr(kind, "_fields", ())) == fields):
            raise Unstorable(f"holds a {module}.{name}{tuple(fields)}, and the script has no such namedtuple")
        return tuple.__new__(kind, self._items(old, stored))  # no code of the class runs

    def _set(self, old: Any, stored: list[Any]) -> Any:
        target: set[Any] = old if self._is_free(old, set) else set()
        items = self._items(None, stored)
        target.clear()
        target.update(items)
        return target

    def _frozenset(self, old: Any, stored: list[Any]) -> Any:
        return frozenset(self._items(None, stored))

    def _dict(self, old: Any, pairs: list[Any]) -> Any:
        return self._fill(old if self._is_free(old, dict) else {}, old, pairs)

    def _plain_dict(self, old: Any, pairs: list[Any]) -> Any:
        return self._dict(old, pairs)

    def _ordered_dict(self, old: Any, pairs: list[Any]) -> Any:
        return self._fill(old if self._is_free(old, OrderedDict) else OrderedDict(), old, pairs)

    def _counter(self, old: Any, pairs: list[Any]) -> Any:
        return self._fill(old if self._is_free(old, Counter) else Counter(), old, pairs)

    def _defaultdict(self, old: Any, factory: str, pairs: list[Any]) -> Any:
        made = self._given.factories.get(factory[1:]) if factory.startswith(".") else FACTORIES[factory]
        if made is None and factory != "None":
            raise Unstorable("is a defaultdict that the script has not given to remember(...), so that its function is missing")
        is_alike = type(old) is defaultdict and old.default_factory is made
        return self._fill(old if is_alike and self._is_free(old) else defaultdict(made), old, pairs)

    def _fill(self, target: Any, old: Any, pairs: list[Any]) -> Any:
        there = dict(old) if isinstance(old, dict) else {}
        items = []
        for stored_key, stored in pairs:
            key = stored_key if type(stored_key) in SCALARS else self._restore(None, stored_key)
            items.append((key, self._restore(there.get(key), stored)))
        target.clear()
        for key, item in items:
            target[key] = item
        return target

    # Arrays and generators

    def _fortran(self, old: Any, stored: Any) -> Any:
        made = stored.copy() if type(stored) is np.ndarray else self._framework.restore(None, stored)
        return made.T

    def _text(self, old: Any, dtype: str, shape: list[int] | None, raw: bytes) -> Any:
        found = np.frombuffer(raw, np.dtype(dtype))
        if found.dtype.kind not in "SUMm":
            raise ValueError(dtype)
        return found[0] if shape is None else found.reshape(shape).copy()

    def _numpy_generator(self, old: Any, state: dict[str, Any]) -> Any:
        kind = state["bit_generator"]
        is_alike = type(old) is np.random.Generator and old.bit_generator.state["bit_generator"] == kind
        if is_alike and self._is_free(old):
            old.bit_generator.state = state
            return old
        if kind not in BIT_GENERATORS:  # the name comes from a file
            raise ValueError(f"a random generator {kind!r}")
        made = getattr(np.random, kind)()
        made.state = state
        return np.random.Generator(made)

    def _random_state(self, old: Any, state: dict[str, Any]) -> Any:
        target = old if self._is_free(old, np.random.RandomState) else np.random.RandomState()
        target.set_state(state)
        return target

    def _random(self, old: Any, state: SplitPython) -> Any:
        target = old if self._is_free(old, random.Random) else random.Random()
        target.setstate(join_python(state))
        return target

    def _bytearray(self, old: Any, raw: bytes) -> Any:
        target = old if self._is_free(old, bytearray) else bytearray()
        target[:] = raw
        return target

    def _range(self, old: Any, start: int, stop: int, step: int) -> Any:
        return range(start, stop, step)

    def _object(self, old: Any, name: str) -> Any:
        if name not in self._given.objects:
            raise Unstorable(f"holds the object {name!r}, which the script has not given to remember(...)")
        return self._given.objects[name]


_MAKERS: dict[str, Any] = {
    NUMBERS: Restorer._numbers,
    "tuple": Restorer._tuple,
    "namedtuple": Restorer._named_tuple,
    "deque": Restorer._deque,
    "set": Restorer._set,
    "frozenset": Restorer._frozenset,
    "dict": Restorer._plain_dict,
    "OrderedDict": Restorer._ordered_dict,
    "Counter": Restorer._counter,
    "defaultdict": Restorer._defaultdict,
    "fortran": Restorer._fortran,
    "text": Restorer._text,
    "numpy.Generator": Restorer._numpy_generator,
    "numpy.RandomState": Restorer._random_state,
    "random.Random": Restorer._random,
    "bytearray": Restorer._bytearray,
    "range": Restorer._range,
    "object": Restorer._object,
}
