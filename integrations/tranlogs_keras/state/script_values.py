"""Values of a script that are tensors of Keras."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any

import keras
import numpy as np

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
