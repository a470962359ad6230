"""Values of a loop as values that a record can hold."""

from __future__ import annotations

import random
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import numpy as np

from ...base.config import MIB, REMEMBERED_BYTES_MAX, REMEMBERED_VALUES_MAX
from ...encoding.tree import NUMPY_DTYPES
from ..rng import split_python
from .number_lists import NumberLists, find_other_kind

_ONLY_PICKLE = (
    "which only pickle could store. Give it state_dict() and load_state_dict(), or get_state() and set_state(), or remember "
    "the numbers, arrays and lists that it is made of"
)
_TOO_LARGE = (
    f"remembered values may take {REMEMBERED_BYTES_MAX // MIB} MiB and be {REMEMBERED_VALUES_MAX:,} in number, since they are "
    "written at each boundary. Make it anew within the turn that uses it, or give an object with state_dict() to track(...)"
)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, np.ufunc)
_DEPTH_MAX = 16  # a container takes up to three levels of a tree, which has 64
_KEYS = frozenset({"tuple", "frozenset", "namedtuple", "text"})  # tags of keys that are no scalars


class Storer:
    """Stores the values of one moment. A value that is there twice is stored once.

    Args:
        framework: knows the framework's values.
        given: objects and functions that the script makes at each start.
        number_lists: knows long lists of numbers from the boundaries before.
        takes_objects: True if objects and functions that are not in `given` are added to it, False if they are refused.
    """

    def __init__(
        self, framework: FrameworkValues, given: Given, number_lists: NumberLists, *, takes_objects: bool = False
    ) -> None:
        self._framework, self._given, self._takes_objects = framework, given, takes_objects
        self._number_lists = number_lists
        self._numbers: dict[int, tuple[int, Any]] = {}  # id -> number of a value, and the value, whose id stays its own
        self._root = ""
        self._open: set[int] = set()  # ids of the containers around the current value
        self._stack: list[str | int] = []  # the path of the current value; numbers are indices
        self._count = self._bytes = self._next = 0

    def store(self, value: Any, root: str) -> Any:
        """Return the stored form of a value.

        Args:
            value: the value.
            root: path of the value.

        Raises:
            Unstorable: it holds something that cannot be stored. Values that are stored later do not refer to its parts.
        """
        known, number, count, size = len(self._numbers), self._next, self._count, self._bytes
        self._root, self._stack, self._open = root, [root], set()
        try:
            return self._store(value)
        except Unstorable:
            for key in list(self._numbers)[known:]:
                del self._numbers[key]
            self._next, self._count, self._bytes = number, count, size
            raise

    def store_states(self) -> tuple[dict[str, Any], list[Unstorable]]:
        """Return the states of given objects by name, and the errors of those that cannot be stored."""
        states, errors = {}, []
        for name, thing in sorted(self._given.objects.items()):
            get, _ = state_methods(thing) or ("state_dict", "")
            try:
                states[name] = self.store(getattr(thing, get)(), f"state.{name}.{get}()")
            except Unstorable as error:
                errors.append(error)
        return states, errors

    def _store(self, value: Any) -> Any:
        kind = type(value)
        self._count += 1
        if self._count > REMEMBERED_VALUES_MAX:
            raise self._refuse(f"is too much: {_TOO_LARGE}", value)
        if kind in SCALARS:
            if kind is str or kind is bytes:
                self._take_bytes(len(value), value)
            return value
        if isinstance(value, np.generic) and value.dtype.name in NUMPY_DTYPES:
            return value
        known = self._numbers.get(id(value))
        if known is not None:
            return "same", known[0]
        if id(value) in self._open:
            raise self._refuse("contains itself", value)
        if len(self._stack) > _DEPTH_MAX:
            raise self._refuse(f"is nested deeper than {_DEPTH_MAX} containers", value)
        number, self._next = self._next, self._next + 1
        self._open.add(id(value))
        found = self._convert(value)
        self._open.discard(id(value))
        if is_counted(found):
            self._numbers[id(value)] = number, value
        else:
            self._next = number
        return found

    def _convert(self, value: Any) -> Any:
        convert = _CONVERTERS.get(type(value))
        if convert is not None:
            return convert(self, value)
        if isinstance(value, np.generic):
            return self._text(value)
        found = self._framework_value(value)
        if found is not None:
            return found
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self._named_tuple(value)
        if isinstance(value, int) and value.__reduce_ex__(2) == (int, (int(value),)):  # an epoch of `optimizer.epochs(...)`
            return int(value)
        name = self._given.name_of(value)
        if name is None:
            name = self._give(value)
        return "object", name

    def _framework_value(self, value: Any) -> Any:
        try:
            found = self._framework.store(value)
        except Unstorable as error:
            raise self._refuse(error.reason, value) from None
        if found is not None:
            self._take_bytes(self._framework.count_bytes(found), value)
        return found

    def _give(self, value: Any) -> str:
        """Add an object to the given ones, under the path at which it is now; return its name."""
        if isinstance(value, _FUNCTIONS):
            raise self._refuse("is a function, which cannot be stored. The script makes it anew: leave it out", value)
        methods = None if isinstance(value, type | types.ModuleType) else state_methods(value)
        if methods is None and isinstance(value, Iterator):
            raise self._refuse(
                f"is {_name_of(value)}, whose position cannot be stored. Take batches from optimizer.batches(...), or "
                "remember how many items were taken",
                value,
            )
        if methods is None:
            raise self._refuse(f"is {_name_of(value)}, {_ONLY_PICKLE}", value)
        if not self._takes_objects:
            raise self._refuse(
                f"is {_name_of(value)} that was not given to remember(...). Only what each start gives to it can take a "
                f"recorded state: write remember({self._root.removeprefix('state.')}=...), or assign what its {methods[0]}() "
                "returns",
                value,
            )
        return self._add_given(self._given.objects, value)

    def _add_given(self, given: dict[str, Any], value: Any) -> str:
        name = self._path().removeprefix("state.")
        given[name] = value
        return name

    def _take_bytes(self, count: int, value: object) -> None:
        self._bytes += count
        if self._bytes > REMEMBERED_BYTES_MAX:
            raise self._refuse(f"is too much: {_TOO_LARGE}", value)

    # Containers

    def _items(self, values: Iterable[Any]) -> list[Any]:
        found = []
        self._stack.append(0)
        for i, value in enumerate(values):
            self._stack[-1] = i
            found.append(self._store(value))
        self._stack.pop()
        return found

    def _list(self, value: list[Any]) -> Any:
        stored = self._number_lists.store(value)
        if stored is None:
            if self._count + len(value) > REMEMBERED_VALUES_MAX and (at := find_other_kind(value)) is not None:
                self._stack.append(at)
                raise self._refuse(
                    f"is {_name_of(value[at])} in a list of {len(value):,} {type(value[0]).__name__} numbers. Lists of floats, "
                    f"or of ints, may be long; of other lists {REMEMBERED_VALUES_MAX:,} items in all are remembered",
                    value[at],
                )
            return self._items(value)
        self._take_bytes(8 * len(value), value)
        return stored

    def _tuple(self, value: tuple[Any, ...]) -> Any:
        return "tuple", self._items(value)

    def _named_tuple(self, value: Any) -> Any:
        kind, items = type(value), []
        for name, item in zip(kind._fields, value, strict=True):
            self._stack.append(f".{name}")
            items.append(self._store(item))
            self._stack.pop()
        return "namedtuple", kind.__module__, kind.__qualname__, list(kind._fields), items

    def _deque(self, value: deque[Any]) -> Any:
        return "deque", value.maxlen, self._items(value)

    def _set(self, value: set[Any] | frozenset[Any]) -> Any:
        try:
            items = sorted(value)
        except TypeError:
            raise self._refuse("is a set of items that have no order, which each process lists in another one", value) from None
        return type(value).__name__, self._items(items)

    def _dict(self, value: dict[Any, Any]) -> Any:
        if type(value) is dict and all(type(key) in SCALARS for key in value):
            found = {}
            self._stack.append("")
            for key, item in value.items():
                self._stack[-1] = f"[{key!r}]"
                found[key] = self._store(item)
            self._stack.pop()
            return found
        return type(value).__name__, self._pairs(value)

    def _pairs(self, value: dict[Any, Any]) -> list[list[Any]]:
        found: list[list[Any]] = []
        self._stack.append("")
        for key, item in value.items():
            self._stack[-1] = f".keys()[{len(found)}]"
            stored = self._store(key)
            if type(stored) is tuple and stored[0] not in _KEYS:
                raise self._refuse(f"is {_name_of(key)}, which cannot be stored as a key", key)
            self._stack[-1] = f"[{key!r}]"
            found.append([stored, self._store(item)])
        self._stack.pop()
        return found

    def _defaultdict(self, value: defaultdict[Any, Any]) -> Any:
        factory = value.default_factory
        name = next((name for name, known in FACTORIES.items() if known is factory), None)
        if name is None and (given := self._given.name_of(factory)) is not None:
            name = f".{given}"
        if name is None and self._takes_objects:
            assert factory is not None, "None has a name"
            name = f".{self._add_given(self._given.factories, factory)}"
        if name is None:
            raise self._refuse(
                "is a defaultdict whose function cannot be stored: give the defaultdict to remember(...), or make it of list, "
                "dict, int or float",
                value,
            )
        return "defaultdict", name, self._pairs(value)

    # Arrays and generators

    def _array(self, value: np.ndarray[Any, Any]) -> Any:
        self._take_bytes(value.nbytes, value)
        if value.dtype.kind in "SUMm":
            return self._text(value)
        if value.flags.f_contiguous and not value.flags.c_contiguous:
            return "fortran", self._numbers_of(value.T)
        return self._numbers_of(value)

    def _numbers_of(self, value: np.ndarray[Any, Any]) -> Any:
        if value.dtype.name in NUMPY_DTYPES and value.dtype.isnative:
            return value
        found = self._framework_value(value) if not value.dtype.hasobject else None
        if found is None:
            raise self._refuse(f"is an array of {value.dtype}, which cannot be stored", value)
        return found

    def _text(self, value: Any) -> Any:
        if value.dtype.kind not in "SUMm":
            raise self._refuse(f"is {_name_of(value)}, which cannot be stored", value)
        shape = list(value.shape) if isinstance(value, np.ndarray) else None
        return "text", value.dtype.str, shape, value.tobytes()

    def _numpy_generator(self, value: np.random.Generator) -> Any:
        state = dict(value.bit_generator.state)
        if state["bit_generator"] not in BIT_GENERATORS:
            raise self._refuse(f"draws from a {state['bit_generator']}: numpy has {', '.join(BIT_GENERATORS)}", value)
        return "numpy.Generator", state

    def _random_state(self, value: np.random.RandomState) -> Any:
        return "numpy.RandomState", dict(value.get_state(legacy=False))

    def _random(self, value: random.Random) -> Any:
        return "random.Random", split_python(value.getstate())

    def _bytearray(self, value: bytearray) -> Any:
        self._take_bytes(len(value), value)
        return "bytearray", bytes(value)

    def _range(self, value: range) -> Any:
        return "range", value.start, value.stop, value.step

    def _path(self) -> str:
        return "".join(part if isinstance(part, str) else f"[{part}]" for part in self._stack)

    def _refuse(self, reason: str, value: object) -> Unstorable:
        return Unstorable(reason, self._path(), value)


def _name_of(value: object) -> str:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"


_CONVERTERS: dict[type, Any] = {
    list: Storer._list,
    tuple: Storer._tuple,
    dict: Storer._dict,
    OrderedDict: Storer._dict,
    Counter: Storer._dict,
    defaultdict: Storer._defaultdict,
    deque: Storer._deque,
    set: Storer._set,
    frozenset: Storer._set,
    np.ndarray: Storer._array,
    np.random.Generator: Storer._numpy_generator,
    np.random.RandomState: Storer._random_state,
    random.Random: Storer._random,
    bytearray: Storer._bytearray,
    range: Storer._range,
}


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
