"""The state of the other callbacks: what they keep as plain attributes and have changed since `fit` began.

EarlyStopping's patience spent, ReduceLROnPlateau's best value, ModelCheckpoint's best, the history. What never changes is
their configuration and stays the script's. What cannot be stored (open files, models) is left out and named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tranlogs.codec import tree
from tranlogs.errors import UnencodableState
from tranlogs.types import Extension

from .adapt import adapt

_KERAS_OWN = {"_model", "params", "validation_data", "model"}
_SKIPPED = (keras.callbacks.ProgbarLogger,)
_HEAVY_BYTES = 1 << 16  # arrays larger than this are read once an epoch: EarlyStopping keeps the best weights

_MODULES = {"keras.ops": keras.ops, "numpy": np}
_COMPARISONS = {"less", "greater", "less_equal", "greater_equal"}

State = dict[str, dict[str, Any]]


class Siblings:
    """See the module.

    Args:
        callbacks: of the fit, without ours, before their `on_train_begin` was called.

    Attributes:
        lost: attributes that have changed and cannot be stored ("MyCallback.model").
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._named = _named(callbacks)
        self._given = {name: {key: _encoded(value) for key, value in _plain(callback).items()}
                       for name, callback in self._named.items()}  # fmt: skip
        self._heavy: dict[tuple[str, str], Any] = {}
        self._carried: State = {}  # restored: it stays in the state even where a later process does not touch it
        self.lost: set[str] = set()

    @property
    def act_before_batches(self) -> bool:
        """Whether any of them does something between a boundary and the step behind it."""
        return any(
            name in vars(callback) or getattr(type(callback), name) is not getattr(keras.callbacks.Callback, name)
            for callback in self._named.values() for name in ("on_train_batch_begin", "on_batch_begin")
        )  # fmt: skip

    def read(self, *, is_epoch_end: bool) -> State:
        """Their state now; large arrays anew only at the end of an epoch."""
        found: State = {}
        for name, callback in self._named.items():
            changed = {}
            given = self._given[name]
            for key, value in _plain(callback).items():
                if not is_epoch_end and _is_heavy(value):
                    if (name, key) in self._heavy:
                        changed[key] = self._heavy[name, key]
                    continue
                encoded = _encoded(value)
                if encoded is None:
                    self.lost |= {f"{name}.{key}"} if key in given or _may_be_state(value) else set()
                elif key in self._carried.get(name, ()) or encoded != given.get(key):
                    changed[key] = packed(value)
                    if _is_heavy(value):
                        self._heavy[name, key] = changed[key]
            if changed:
                found[name] = changed
        return found

    def write(self, state: State) -> None:
        """Give each callback its recorded state."""
        for name, attributes in state.items():
            callback = self._named.get(name)
            if callback is None:
                continue
            for key, value in attributes.items():
                value = unpacked(value)
                if _is_heavy(value):
                    self._heavy[name, key] = attributes[key]
                old = getattr(callback, key, None)
                if isinstance(old, dict) and isinstance(value, dict):  # others may hold it: `model.history.history`
                    old.clear()
                    old.update(value)
                else:
                    setattr(callback, key, value)
        self._carried = state


def packed(value: Any) -> Any:
    """A value with its long lists of floats as arrays, which boundaries share until they change; functions by name."""
    name = _function_name(value)
    if name is not None:
        return Extension("function", name)
    if isinstance(value, dict):
        return {key: packed(item) for key, item in value.items()}
    if isinstance(value, list) and len(value) > 8 and all(type(item) is float for item in value):
        return Extension("floats", np.array(value, np.float64))
    return [packed(item) for item in value] if isinstance(value, list) else value


def unpacked(value: Any) -> Any:
    """The inverse."""
    if isinstance(value, Extension) and value.tag == "floats":
        return value.value.tolist()
    if isinstance(value, Extension) and value.tag == "function":
        module, _, name = value.value.rpartition(".")
        found = getattr(_MODULES.get(module), name, None)
        return found if _function_name(found) == value.value else None
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


def _plain(callback: Any) -> dict[str, Any]:
    return {key: value for key, value in vars(callback).items() if key not in _KERAS_OWN}


def _encoded(value: Any) -> bytes | None:
    """A value's bytes, to compare it by; None if it cannot be stored."""
    try:
        return tree.encode(packed(value), adapt=adapt)
    except UnencodableState:
        return None


def _function_name(value: Any) -> str | None:
    """Of what a monitor compares by: keras.ops.less, numpy.greater. No other function is taken, or looked up."""
    name = getattr(value, "__name__", None)
    for module, functions in _MODULES.items():
        if callable(value) and isinstance(name, str) and name in _COMPARISONS and getattr(functions, name, None) is value:
            return f"{module}.{name}"
    return None


def _is_heavy(value: Any) -> bool:
    arrays = value if isinstance(value, (list, tuple)) else [value]
    return sum(item.nbytes for item in arrays if isinstance(item, np.ndarray)) > _HEAVY_BYTES


def _may_be_state(value: Any) -> bool:
    """Whether an attribute that cannot be stored looks like something that training has made."""
    return isinstance(value, (list, dict, set, tuple)) and not callable(value)
