"""TensorFlow's variables and tensors as numpy sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .arrays import Values


def reader_of(variables: Sequence[Any]) -> Callable[[], Any]:
    """Reads all of them in one call, and copies nothing."""
    plain = [plain_variable(v) for v in variables]
    if all(isinstance(v, tf.Variable) for v in variables):  # components of replicas lie on devices of their own
        return lambda: [v.read_value() for v in plain]
    made: Callable[[], Any] = tf.function(lambda: [v.read_value() for v in plain], autograph=False).get_concrete_function()
    return made


def plain_variable(variable: Any) -> Any:
    """Return the tf.Variable of a Keras variable, or the variable itself."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def host_view(tensor: Any) -> Values:
    """Return a view of a tensor's memory, or a copy if numpy cannot read it (another device, bfloat16); an array as it is."""
    if isinstance(tensor, np.ndarray):
        return tensor
    try:
        return np.asarray(memoryview(tensor))
    except (ValueError, TypeError, BufferError, NotImplementedError):
        return np.asarray(tensor.numpy())


def is_same_memory(a: Values, b: Values) -> bool:
    return bool(a.__array_interface__["data"][0] == b.__array_interface__["data"][0])


def is_sparse(gradient: Any) -> bool:
    return type(gradient) is tf.IndexedSlices  # asking with isinstance takes twenty microseconds
