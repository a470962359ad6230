"""Values of a script that are tensors of Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

_ITEMS_MAX = 1 << 12  # of a tensor, which is copied


def read_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return a small tensor of the backend, which is no variable, as an array."""
    if hasattr(value, "assign") or isinstance(value, keras.KerasTensor) or not keras.ops.is_tensor(value):
        return None
    try:
        return np.asarray(keras.ops.convert_to_numpy(value)) if np.prod(value.shape) <= _ITEMS_MAX else None
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return None
