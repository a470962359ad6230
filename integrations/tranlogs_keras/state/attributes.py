"""The attributes that an object has changed since the script made it: of callbacks, of data sets.

Numbers, strings, arrays, and containers of these are stored; random generators and variables are set in place.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable
from operator import is_
from typing import Any, NamedTuple

import keras
import numpy as np

from tranlogs.base.errors import UnencodableState
from tranlogs.base.types import Extension
from tranlogs.records import tree
from tranlogs.training import NumberLists, join_python, restore_numbers, split_python

from ..backends.arrays import adapt
from .state import digest

_HEAVY_BYTES = 1 << 16  # arrays larger than this are compared by digest: EarlyStopping keeps the best weights
_DIGESTED_BYTES_MAX = 16 << 20
_SAME = object()
_MODULES = {"keras.ops": keras.ops, "numpy": np}
_COMPARISONS = {"less", "greater", "less_equal", "greater_equal"}
_OTHER = object()
_NUMBERS = "numbers"
_DEPTH_MAX = 3  # of what is copied
_ATOMS = (bool, int, float, str, bytes, type(None))


class GivenAttributes(NamedTuple):
    """The attributes that the script has given an object.

    Attributes:
        marks: digests or encodings of the attributes; None for what cannot be stored.
        inside: of objects that cannot be stored as a whole: what shows that they have changed.
    """

    marks: dict[str, Any]
    inside: dict[str, bytes | None]

    @classmethod
    def of(cls, attributes: dict[str, Any]) -> GivenAttributes:
        """Return the attributes as they are now."""
        marks = {name: _mark(value) for name, value in attributes.items()}
        return cls(marks, {name: _inside(value) for name, value in attributes.items() if marks[name] is None})


class ChangedAttributes:
    """The attributes of an object that are not as the script has given them, as a boundary records them.

    `lose` is called with the name of an attribute that has changed and cannot be stored. An attribute that was recorded once is
    recorded from then on. Else a continued run would record more than its first process.
    """

    def __init__(self, thing: Any, given: GivenAttributes, lose: Callable[[str], None]) -> None:
        self._thing, self._given, self._lose = thing, given, lose
        self._seen: dict[str, Any] = {}  # copies of the attributes at the last look
        self._packed: dict[str, tuple[Any, Any]] = {}  # digest or encoding, and what was packed
        self._carried: set[str] = set()
        self._state: dict[str, Any] | None = None  # as of the last look

    @property
    def is_due(self) -> bool:
        """True before the first look, and after `write`."""
        return self._state is None

    def read(self, attributes: dict[str, Any]) -> dict[str, Any]:
        """Return the present ones in a form that can be encoded: the same object as before if none has changed."""
        seen, before = self._seen, self._state or {}
        others = {key for key, value in attributes.items() if key not in seen or not is_as_before(value, seen[key])}
        if self._state is not None and not others and len(seen) == len(attributes):
            return self._state
        self._seen = {key: copied(value) if key in others else seen[key] for key, value in attributes.items()}
        found = {
            key: self._changed(key, value) if key in others else before.get(key, _SAME) for key, value in attributes.items()
        }
        now = {key: value for key, value in found.items() if value is not _SAME}
        if self._state is None or now.keys() != before.keys() or any(now[key] is not before[key] for key in now):
            self._state = now
            self._carried |= now.keys()
        return self._state

    def _changed(self, key: str, value: Any) -> Any:
        """Return an attribute, packed, if it differs from the script's: the same object as long as it stays the same."""
        marks, inside, mark = self._given.marks, self._given.inside.get(key), _mark(value)
        if mark is None:
            is_new = key not in marks and _may_be_state(value)
            if is_new or marks.get(key) is not None or (inside is not None and _inside(value) != inside):
                self._lose(key)
            return _SAME
        if mark == marks.get(key) and key not in self._carried:
            return _SAME
        known = self._packed.get(key)
        if known is None or known[0] != mark:
            known = self._packed[key] = mark, packed(value)
        return known[1]

    def write(self, recorded: dict[str, Any]) -> None:
        """Give the object recorded attributes."""
        for key, value in recorded.items():
            if is_content(value):
                if not set_content(self._thing, key, value):
                    self._lose(key)
                continue
            made, old = unpacked(value), getattr(self._thing, key, None)
            if _is_heavy(made):
                self._packed[key] = _digest(made), value
            if isinstance(old, dict) and isinstance(made, dict):  # others may hold it: `model.history.history`
                old.clear()
                old.update(made)
            else:
                setattr(self._thing, key, made)
        self._carried, self._seen, self._state = set(recorded), {}, None


def store_lists(value: Any, lists: NumberLists) -> Any:
    """Return a value with its long lists of numbers in the form in which they are stored."""
    if type(value) is dict:
        return {key: store_lists(item, lists) if type(item) is list else item for key, item in value.items()}
    stored = lists.store(value) if type(value) is list else None
    return value if stored is None else Extension(_NUMBERS, stored)


def copied(value: Any, depth: int = 0) -> Any:
    """Copy lists, tuples and dicts of numbers and strings, with all that is in them; return a mark for anything else, which
    `is_as_before` takes for no value."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:
        keys, values = copied(list(value), depth), copied(list(value.values()), depth)
        return _OTHER if keys is _OTHER or values is _OTHER else (dict, keys, values)
    if kind is Extension and value.tag == _NUMBERS:
        return kind, value.value
    if kind not in (list, tuple) or depth > _DEPTH_MAX:
        return _OTHER
    items = [item if type(item) in _ATOMS else copied(item, depth + 1) for item in value]
    return _OTHER if any(item is _OTHER for item in items) else (kind, items)


def is_as_before(value: Any, copy: Any) -> bool:
    """Return True if a value is equal to its copy: the very same numbers and strings."""
    kind = type(value)
    if kind in _ATOMS:
        return value is copy or (kind is type(copy) and kind is not float and value == copy)
    if type(copy) is not tuple or copy[0] is not kind:
        return False
    if kind is Extension:
        return _are_same_numbers(value.value, copy[1])
    if kind is dict:
        return is_as_before(list(value), copy[1]) and is_as_before(list(value.values()), copy[2])
    items = copy[1]
    return len(value) == len(items) and (all(map(is_, value, items)) or all(map(is_as_before, value, items)))


def _are_same_numbers(stored: tuple[Any, ...], before: tuple[Any, ...]) -> bool:
    """Return True if two stored forms are of one unchanged list: its full blocks are the same arrays."""
    *about, blocks, recent, last = stored
    *about_before, blocks_before, recent_before, last_before = before
    return about == about_before and recent is recent_before and last == last_before and all(map(is_, blocks, blocks_before))


def packed(value: Any) -> Any:
    """Return a value with its long lists of floats as arrays, which boundaries share until they change; functions by name."""
    content = content_of(value)
    if content is not None:
        return content
    name = _function_name(value)
    if name is not None:
        return Extension("function", name)
    if isinstance(value, np.ndarray):
        return value.copy()  # it may be written to before it is in the log
    if isinstance(value, dict):
        return {key: _packed_item(item) for key, item in value.items()}
    if isinstance(value, deque):
        return Extension("deque", {"items": [_packed_item(item) for item in value], "maxlen": value.maxlen})
    if isinstance(value, (set, frozenset)):
        return Extension(type(value).__name__, sorted(map(packed, value), key=repr))
    if isinstance(value, list) and len(value) > 8 and all(type(item) is float for item in value):
        return Extension("floats", np.array(value, np.float64))
    return [_packed_item(item) for item in value] if isinstance(value, list) else value


def _packed_item(value: Any) -> Any:
    """Pack an item of a container. Generators and variables are set in place, which is possible for attributes alone."""
    return value if content_of(value) is not None else packed(value)


def unpacked(value: Any) -> Any:
    """Return the value that `packed` was given."""
    if isinstance(value, Extension) and value.tag == "floats":
        return value.value.tolist()
    if isinstance(value, Extension) and value.tag == _NUMBERS:
        return restore_numbers(*value.value[1:])
    if isinstance(value, Extension) and value.tag == "function":
        module, _, name = value.value.rpartition(".")
        found = getattr(_MODULES.get(module), name, None)
        return found if _function_name(found) == value.value else None
    if isinstance(value, Extension) and value.tag == "deque":
        return deque(map(unpacked, value.value["items"]), value.value["maxlen"])
    if isinstance(value, Extension) and value.tag in ("set", "frozenset"):
        return (set if value.tag == "set" else frozenset)(map(unpacked, value.value))
    if isinstance(value, dict):
        return {key: unpacked(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.copy()  # what was read cannot be written to
    return [unpacked(item) for item in value] if isinstance(value, list) else value


def _mark(value: Any) -> list[int] | bytes | None:
    """Return that by which a value is compared; None if it cannot be stored."""
    return _digest(value) if _is_heavy(value) else _encoded(value)


def _encoded(value: Any) -> bytes | None:
    """Return a value's bytes, by which it is compared; None if it cannot be stored."""
    try:
        return tree.encode(packed(value), adapt=adapt)
    except (UnencodableState, RecursionError, TypeError):  # an item that is no part of a set, when it is packed
        return None


def _inside(value: Any) -> bytes | None:
    """Return the bytes of an object's public attributes that are plain or small arrays; None of a function, or a part of Keras.

    It is asked at boundaries, so large arrays of a data set that a callback holds are not read. Loggers keep no state.
    """
    if _may_be_state(value):
        return str(len(value)).encode()
    ignored = (type, keras.Model, keras.optimizers.Optimizer, logging.Logger)
    if callable(value) or isinstance(value, ignored) or not hasattr(value, "__dict__"):
        return None
    public = {name: item for name, item in vars(value).items() if not name.startswith("_")}
    arrays = {name for name, item in public.items() if isinstance(item, np.ndarray) and item.nbytes <= _HEAVY_BYTES}
    return _encoded({name: item for name, item in public.items() if name in arrays or copied(item) is not _OTHER})


def _function_name(value: Any) -> str | None:
    """Return the name of a comparison of a monitor (keras.ops.less, numpy.greater); None for any other function."""
    name = getattr(value, "__name__", None)
    for module, functions in _MODULES.items():
        if callable(value) and isinstance(name, str) and name in _COMPARISONS and getattr(functions, name, None) is value:
            return f"{module}.{name}"
    return None


def _is_heavy(value: Any) -> bool:
    arrays = _items(value)
    return sum(item.nbytes for item in arrays if isinstance(item, np.ndarray)) > _HEAVY_BYTES


def _digest(value: Any) -> list[int]:
    """Return a digest of one large array, or of several. It is taken at each boundary, so very large arrays are sampled."""
    found = []
    for item in _items(value):
        if not isinstance(item, np.ndarray) or item.dtype.kind == "O":
            found.append(hash(_encoded(item)))
            continue
        array = item
        whole = array if array.nbytes <= _DIGESTED_BYTES_MAX else array.reshape(-1)[:: array.nbytes // _DIGESTED_BYTES_MAX + 1]
        found += [id(item) if array.nbytes > _DIGESTED_BYTES_MAX else 0, digest(whole)]
    return found


def _items(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, (list, tuple)) else [value]


def _may_be_state(value: Any) -> bool:
    """Return True if an attribute that cannot be stored looks like something that training has made."""
    return isinstance(value, (list, dict, set, tuple, deque)) and not callable(value)


_TAGS = {"numpy.Generator", "numpy.RandomState", "random.Random", "keras.SeedGenerator", "variable"}


def content_of(value: Any) -> Extension | None:
    """Return the state of a generator or a variable; None for anything else."""
    if isinstance(value, np.random.Generator):
        return Extension("numpy.Generator", value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return Extension("numpy.RandomState", value.get_state(legacy=True))
    if isinstance(value, random.Random):
        return Extension("random.Random", split_python(value.getstate()))
    if isinstance(value, keras.random.SeedGenerator):
        return Extension("keras.SeedGenerator", _array_of(value.state))
    if _is_variable(value):
        return Extension("variable", _array_of(value))
    return None


def is_random(value: Any) -> bool:
    """Return True for a random generator. No attribute of the value is read: the script's own could raise anything."""
    return issubclass(type(value), (np.random.Generator, np.random.RandomState, random.Random, keras.random.SeedGenerator))


def is_content(value: Any) -> bool:
    """Return True if a recorded value is what `content_of` returned."""
    return isinstance(value, Extension) and value.tag in _TAGS


def set_content(owner: Any, name: str, content: Extension) -> bool:
    """Set the generator or variable that is an attribute of `owner`; return False if it is none of that kind."""
    now: Any = getattr(owner, name, None)
    held = content_of(now)
    if held is None or held.tag != content.tag:
        return False
    if content.tag == "numpy.Generator":
        now.bit_generator.state = content.value
    elif content.tag == "numpy.RandomState":
        now.set_state(content.value)
    elif content.tag == "random.Random":
        now.setstate(join_python(content.value))
    elif content.tag == "keras.SeedGenerator":
        now.state.assign(content.value)
    else:
        now.assign(content.value)
    return True


def _is_variable(value: Any) -> bool:
    if isinstance(value, keras.Variable):
        return True
    kind = type(value)
    return kind.__module__.partition(".")[0] == "tensorflow" and hasattr(kind, "assign") and hasattr(kind, "numpy")


def _array_of(variable: Any) -> np.ndarray[Any, Any]:
    return np.array(keras.ops.convert_to_numpy(variable))  # a copy: a backend may give a view
