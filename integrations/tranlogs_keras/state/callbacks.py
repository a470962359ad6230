"""The state of the other callbacks: what they keep as plain attributes and have changed since their first `fit` began.

EarlyStopping's patience spent, ReduceLROnPlateau's best value, ModelCheckpoint's best, the history. What never changes is
their configuration and stays the script's. In a later fit, what an earlier one has changed is state, too: a process that
starts again passes the earlier one over. What cannot be stored (models, files of callbacks other than Keras's) is left out
and named. Files that Keras's own callbacks write come back with them (`written_files`).
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Sequence
from operator import is_
from typing import Any, NamedTuple

import keras
import numpy as np

from tranlogs.base.errors import UnencodableState
from tranlogs.base.types import Extension
from tranlogs.records import tree
from tranlogs.training import NumberLists, restore_numbers

from ..backends.arrays import adapt
from .script_values import content_of, is_content, set_content
from .state import digest
from .written_files import FILE, handles_of, read_file, restore_file

_KERAS_OWN = {"_model", "params", "validation_data", "model"}
_SKIPPED = (keras.callbacks.ProgbarLogger,)
_BEFORE_BATCHES = ("on_train_batch_begin", "on_batch_begin")
_AFTER_BATCHES = ("on_train_batch_end", "on_batch_end")
_HOOKS = (*_BEFORE_BATCHES, *_AFTER_BATCHES)
# They have hooks of batches, which write no variable of the model.
_READING = (keras.callbacks.ModelCheckpoint, keras.callbacks.TensorBoard, keras.callbacks.TerminateOnNaN)
_OF_EACH_PROCESS = {
    # Times, and event files with the number of the process in their names.
    keras.callbacks.TensorBoard: (FILE, "_batch_start_time", "_epoch_start_time", "_train_accumulated_time"),
    keras.callbacks.CSVLogger: ("append_header",),  # whether the table was empty as this process opened it
}
_HEAVY_BYTES = 1 << 16  # arrays larger than this are compared by digest: EarlyStopping keeps the best weights
_DIGESTED_BYTES_MAX = 16 << 20
_SAME = object()
_MODULES = {"keras.ops": keras.ops, "numpy": np}
_COMPARISONS = {"less", "greater", "less_equal", "greater_equal"}
State = dict[str, dict[str, Any]]


class _Given(NamedTuple):
    """The attributes of a callback before its first fit in this process: what the script has given it.

    Attributes:
        callback: reference to the callback.
        marks: digests or encodings of the attributes; None for what cannot be stored.
        inside: of objects that cannot be stored as a whole: what shows that they have changed.
    """

    callback: weakref.ref[Any]
    marks: dict[str, Any]
    inside: dict[str, bytes | None]


_given_by_id: dict[int, _Given] = {}  # a callback need not be hashable


class CallbackStates:
    """The attributes of the other callbacks of a fit that have changed since their first one, as a boundary records them.

    Args:
        callbacks: of the fit, without ours, before their `on_train_begin` was called.

    Attributes:
        lost: attributes that have changed and cannot be stored ("MyCallback.model").
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._named, self._number_lists = _named(callbacks), NumberLists()
        self._given = {name: self._read_given(callback) for name, callback in self._named.items()}
        self._packed: dict[tuple[str, str], tuple[Any, Any]] = {}  # digest or encoding, and what was packed
        self._batchwise = {name: callback for name, callback in self._named.items() if _has_hook(callback, *_HOOKS)}
        self._seen: dict[str, dict[str, Any]] = {}  # copies of attributes at the last look
        self._states: State = {}  # as of the last look
        self._carried: State = {}  # restored: it stays in the state even where a later process does not touch it
        self._files: dict[str, Any] = {}  # what brings back the files of callbacks, as of the last look
        self.lost: set[str] = set()

    @property
    def write_before_batches(self) -> bool:
        """True if a callback may write variables between a boundary and the step after it."""
        return any(_has_hook(callback, *_BEFORE_BATCHES) for callback in self._writing())

    @property
    def write_after_batches(self) -> bool:
        """True if a callback may write variables between a step and the boundary after it."""
        return any(_has_hook(callback, *_AFTER_BATCHES) for callback in self._writing())

    def _writing(self) -> list[Any]:
        return [callback for callback in self._named.values() if type(callback) not in _READING]

    @property
    def names(self) -> list[str]:
        """The names under which a boundary may hold their states."""
        return list(self._named)

    @property
    def of_each_process(self) -> set[str]:
        """The attributes that differ between two processes which do the same, as "NAME.ATTRIBUTE"."""
        return {
            f"{name}.{attribute}"
            for name, callback in self._named.items()
            for kind, attributes in _OF_EACH_PROCESS.items()
            if isinstance(callback, kind)
            for attribute in attributes
        }

    def read(self, *, is_end: bool = True) -> State:
        """Return the state of the callbacks: the same object as before for each callback that has not changed.

        Args:
            is_end: of an epoch or a fit, where all of them have had their turn. Within an epoch only those that have hooks of
                batches may have changed; if one of them is not Keras's own, it may have changed others. The first look, and
                the first one after `write`, is at all of them.
        """
        looks_at_all = is_end or any(type(callback) not in _READING for callback in self._batchwise.values())
        for name, callback in self._named.items():
            if looks_at_all or name in self._batchwise or name not in self._states:
                self._look(name, callback, is_end=is_end)
        self._number_lists.end_boundary()
        return {name: state for name, state in self._states.items() if state}

    def _read_given(self, callback: Any) -> _Given:
        """Return what the script has given a callback, which is read before its first fit."""
        known, key = _given_by_id.get(id(callback)), id(callback)
        if known is None or known.callback() is not callback:
            marks = {name: _mark(value) for name, value in self._read(callback).items()}
            inside = {name: _inside(value) for name, value in _plain(callback).items() if marks[name] is None}
            known = _given_by_id[key] = _Given(weakref.ref(callback, lambda _: _given_by_id.pop(key, None)), marks, inside)
        return known

    def _read(self, callback: Any) -> dict[str, Any]:
        """Return a callback's attributes, with long lists of numbers in the form in which they are stored."""
        return {key: self._with_stored_lists(value) for key, value in _plain(callback).items()}

    def _with_stored_lists(self, value: Any) -> Any:
        if type(value) is dict:
            return {key: self._with_stored_lists(item) if type(item) is list else item for key, item in value.items()}
        stored = self._number_lists.store(value) if type(value) is list else None
        return value if stored is None else Extension(_NUMBERS, stored)

    def _look(self, name: str, callback: Any, *, is_end: bool) -> None:
        """Read a callback's attributes, and its file, that may be others than at the last look."""
        seen, plain = self._seen.setdefault(name, {}), self._read(callback)
        if handles_of(callback):
            file = self._files[name] = read_file(callback, self._files.get(name), is_due=is_end or name not in self._states)
            plain |= {FILE: file} if file is not None else {}
            self.lost |= {f"{name}'s file"} if file is None else set()
        others = {key: value for key, value in plain.items() if key not in seen or not is_as_before(value, seen[key])}
        if not others and len(seen) == len(plain) and name in self._states:
            return
        before = self._states.get(name, {})
        self._seen[name] = {key: copied(value) if key in others else seen[key] for key, value in plain.items()}
        found = {
            key: self._changed(name, key, value) if key in others else before.get(key, _SAME) for key, value in plain.items()
        }
        now = {key: value for key, value in found.items() if value is not _SAME}
        if name not in self._states or now.keys() != before.keys() or any(now[key] is not before[key] for key in now):
            self._states[name] = now

    def _changed(self, name: str, key: str, value: Any) -> Any:
        """Return an attribute, packed, if it differs from the script's: the same object as long as it stays the same."""
        # An attribute that was in the state once stays there. Else a continued run would record more than its first process.
        given, inside = self._given[name].marks, self._given[name].inside.get(key)
        is_carried = key in self._carried.get(name, ()) or key in self._states.get(name, ())
        mark = _mark(value)
        if mark is None:
            is_changed = given.get(key) is not None or _may_be_state(value) or (inside is not None and _inside(value) != inside)
            self.lost |= {f"{name}.{key}"} if is_changed else set()
            return _SAME
        if mark == given.get(key) and not is_carried:
            return _SAME
        known = self._packed.get((name, key))
        if known is None or known[0] != mark:
            known = self._packed[name, key] = mark, packed(value)
        return known[1]

    def write(self, state: State, *, is_complete: bool = False, has_files: bool = True) -> None:
        """Give each callback its recorded state.

        Args:
            state: as a boundary has recorded it.
            is_complete: whether the fit has nothing left to train.
            has_files: whether the files of callbacks are brought back, too.
        """
        for name, attributes in state.items():
            callback = self._named.get(name)
            if callback is None:
                continue
            for key, value in attributes.items():
                if key == FILE and not has_files:
                    continue
                if key == FILE:
                    self._files[name] = unpacked(value)
                    restore_file(callback, self._files[name], is_complete=is_complete)
                    continue
                if is_content(value):
                    if not set_content(callback, key, value):
                        self.lost.add(f"{name}.{key}")
                    continue
                packed_value, value = value, unpacked(value)
                if _is_heavy(value):
                    self._packed[name, key] = _digest(value), packed_value
                old = getattr(callback, key, None)
                if isinstance(old, dict) and isinstance(value, dict):  # others may hold it: `model.history.history`
                    old.clear()
                    old.update(value)
                else:
                    setattr(callback, key, value)
        self._carried = state
        self._seen.clear()
        self._states = {}


_OTHER = object()
_NUMBERS = "numbers"
_DEPTH_MAX = 3  # of what is copied
_ATOMS = (bool, int, float, str, bytes, type(None))


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


def _named(callbacks: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for callback in callbacks:
        if isinstance(callback, _SKIPPED):
            continue
        base, count = type(callback).__name__, 1
        name = base
        while name in found:
            count += 1
            name = f"{base}#{count}"
        found[name] = callback
    return found


def _has_hook(callback: Any, *names: str) -> bool:
    """Return True if a callback has methods of these names that Keras's base class does not have."""
    base = keras.callbacks.Callback
    return any(name in vars(callback) or getattr(type(callback), name) is not getattr(base, name) for name in names)


def _plain(callback: Any) -> dict[str, Any]:
    """Attributes that may be state of the callback's own; variables of the model come back with the model."""
    model = vars(callback).get("_model")
    of_model = {id(variable) for variable in model.variables} if model is not None and _holds_variables(callback) else set()
    ignored = _KERAS_OWN | handles_of(callback)
    return {key: value for key, value in vars(callback).items() if key not in ignored and id(value) not in of_model}


def _holds_variables(callback: Any) -> bool:
    return any(isinstance(value, keras.Variable) for value in vars(callback).values())


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
    ignored = (type, keras.Model, keras.optimizers.Optimizer, logging.Logger)
    if callable(value) or isinstance(value, ignored) or not hasattr(value, "__dict__"):
        return None
    public = {name: item for name, item in vars(value).items() if not name.startswith("_")}
    plain = {name: item for name, item in public.items() if _is_small_array(item) or copied(item) is not _OTHER}
    return _encoded(plain)


def _is_small_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.nbytes <= _HEAVY_BYTES


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
