"""Values of Keras and its backend in what a loop remembers: tensors. What has variables belongs to `track`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tranlogs.training import Unstorable

from .. import keras_internals
from ..backends import arrays

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
