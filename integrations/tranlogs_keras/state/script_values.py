"""Values that a script keeps: tensors, random generators and variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any

import keras
import numpy as np

from tranlogs.training import Unstorable

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

    `kept` returns the variables that the run keeps.
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
