"""Values that a script keeps: tensors, random generators and variables."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any

import keras
import numpy as np

from tranlogs.base.types import Extension
from tranlogs.training import Unstorable, join_python, split_python

from .. import keras_internals
from ..backends import arrays

_ITEMS_MAX = 1 << 12  # of a tensor, which is copied
_VARIABLES_MAX = 16  # of a layer, the smallest ones


def read_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return a small tensor of the backend, which is no variable, as an array."""
    if hasattr(value, "assign") or isinstance(value, keras.KerasTensor) or not keras.ops.is_tensor(value):
        return None
    try:
        return np.asarray(keras.ops.convert_to_numpy(value)) if np.prod(value.shape) <= _ITEMS_MAX else None
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return None


def version_of(kept: Callable[[], Iterable[Any]]) -> Callable[[Any], bytes | None]:
    """Return a function that digests the small variables of a layer, or model, which the run does not keep.

    Args:
        kept: returns the variables that the run keeps.
    """

    def read_version(value: Any) -> bytes | None:
        if not isinstance(value, keras.Layer):
            return None
        known = set(map(id, kept()))
        others = sorted((one for one in value.variables if id(one) not in known), key=lambda one: float(np.prod(one.shape)))
        found = blake2b(digest_size=8)
        for one in others[:_VARIABLES_MAX]:
            if np.prod(one.shape) <= _ITEMS_MAX or one is others[0]:
                found.update(np.asarray(keras.ops.convert_to_numpy(one.value)).tobytes())
        return found.digest() if others else b""

    return read_version


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


_WITH_VARIABLES = (
    keras.Layer,
    keras.Variable,
    keras.metrics.Metric,
    keras.random.SeedGenerator,
    keras_internals.BaseOptimizer,
)


class LoopValues:
    """Stores and restores tensors of the backend: ("tensor", dtype, requires_grad, array)."""

    def store(self, value: Any) -> Any:
        """Return the stored form of a tensor, or of an array whose dtype is not numpy's own; None for any other value."""
        if isinstance(value, _WITH_VARIABLES) or (hasattr(value, "assign") and hasattr(value, "numpy")):
            raise Unstorable(f"is a {type(value).__name__}, which has variables. Track it: optimizer.track(name=...)")
        if isinstance(value, np.ndarray):
            return value if value.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2") else None
        if not keras.ops.is_tensor(value):
            return None
        held = np.array(keras.ops.convert_to_numpy(value))
        if held.dtype.hasobject or held.dtype.kind in "SU":
            raise Unstorable(f"is a tensor of {value.dtype}, which cannot be stored")
        return "tensor", keras.backend.standardize_dtype(value.dtype), bool(getattr(value, "requires_grad", False)), held

    def count_bytes(self, value: Any) -> int:
        """Return the size of the array that a stored value holds."""
        return int(value[3].nbytes) if type(value) is tuple else 0

    def restore(self, old: Any, stored: Any) -> Any:
        """Return the tensor of a stored one."""
        if type(stored) is not tuple or stored[0] != "tensor":
            raise Unstorable("cannot be read: another version of TranLogs has written it")
        made = keras.ops.convert_to_tensor(stored[3].copy(), dtype=stored[1])
        return made.requires_grad_() if stored[2] else made

    def adapt(self, value: Any) -> Any:
        """Prepare a stored value for the encoder of trees."""
        return arrays.adapt(value)
