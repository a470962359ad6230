"""TensorFlow's variables and tensors as numpy sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .arrays import Values
from .backend import HostViews


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


class TensorViews(HostViews):
    """The values of tensors, which are views of their memory or copies. All are made when one is asked for, and once."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        super().__init__(tensors, host_view)
        self._views: list[Values] | None = None

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def __iter__(self) -> Iterator[Values]:
        return iter(self._all())

    def _all(self) -> list[Values]:
        if self._views is None:
            self._views = host_views(self._arrays)
        return self._views


def host_views(tensors: Sequence[Any]) -> list[Values]:
    """Return views of the memory of tensors, or copies where numpy cannot read it; arrays as they are."""
    try:
        return list(map(np.asarray, map(_view_of, tensors)))
    except (ValueError, TypeError, BufferError, NotImplementedError):  # numpy cannot read one of them
        return list(map(host_view, tensors))


_view_of: Callable[[Any], Any] = memoryview


def host_view(tensor: Any) -> Values:
    """Return a view of a tensor's memory, or a copy if numpy cannot read it (another device, bfloat16); an array as it is."""
    if isinstance(tensor, np.ndarray):
        return tensor
    try:
        return np.asarray(memoryview(tensor))
    except (ValueError, TypeError, BufferError, NotImplementedError):
        return np.asarray(tensor.numpy())


def addresses_of(values: Sequence[Values]) -> list[int]:
    """Return where the values lie."""
    return [value.__array_interface__["data"][0] for value in values]


def is_sparse(gradient: Any) -> bool:
    return type(gradient) is tf.IndexedSlices  # asking with isinstance takes twenty microseconds
