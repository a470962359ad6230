"""TensorFlow's tensors as numpy sees them, its random operations, and the updates that live steps and redo share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from ..keras_internals import trained_by
from .arrays import Values
from .backend import HostViews
from .tap import Gradients

APART = {"_noinline": True}  # of a function: what calls it is optimized without it, and it without what calls it


class TensorFlowUpdates:
    """The updates of one optimizer; see `Updates`.

    `values_of` reads variables. With `jit_compile`, XLA compiles the update.
    """

    def __init__(
        self, optimizer: Any, values_of: Callable[[Sequence[Any]], Sequence[Values]], *, jit_compile: bool = False
    ) -> None:
        self._optimizer, self._values_of, self._jit_compile = optimizer, values_of, jit_compile
        self.is_eager = False
        self._updates: dict[Any, Any] = {}  # by the form of the gradients
        self._applies: dict[Any, tuple[Callable[[Any], Any], Any]] = {}  # by update, and what is read after it

    def apply(self, gradients: Gradients, reading: Sequence[Any] = ()) -> Sequence[Values]:
        """Compute the update, and return values of variables after it."""
        given = tuple(g for g in gradients if g is not None)
        mask = tuple(g is None for g in gradients)
        if self.is_eager:
            self._apply_now(given, mask)
            return self._values_of(reading)
        update = self.update_of(given, mask)
        key = update, tuple(map(id, reading))
        if key not in self._applies:
            self._applies[key] = _nested(update, reading), list(reading)
        return TensorViews(self._applies[key][0](given))

    def update_of(self, given: tuple[Any, ...], mask: tuple[bool, ...]) -> Callable[[Any], Any]:
        """Return the update as a function that graph optimizers do not rewrite.

        Its results do not depend on the caller, as long as that is another function. Each form of gradients has its own.
        """
        key = mask, tuple(map(_kind, given))
        if key not in self._updates:
            variables = [v for v, is_none in zip(trained_by(self._optimizer), mask, strict=True) if not is_none]
            signature = [tuple(_signature(g, v) for g, v in zip(given, variables, strict=True))]
            self._updates[key] = tf.function(
                lambda given: self._apply_now(given, mask),
                input_signature=signature,
                jit_compile=self._jit_compile,
                autograph=False,
                experimental_attributes=APART,
            )
        made: Callable[[Any], Any] = self._updates[key]
        return made

    def _apply_now(self, given: tuple[Any, ...], mask: tuple[bool, ...]) -> None:
        optimizer, left = self._optimizer, iter(given)
        gradients = [None if is_none else next(left) for is_none in mask]
        type(optimizer).apply(optimizer, gradients, trained_by(optimizer))


def _nested(update: Callable[[Any], Any], reading: Sequence[Any]) -> Callable[[Any], Any]:
    """Compute the update within a function of its own, as in a step; the function then reads some variables."""
    plain = [plain_variable(v) for v in reading]

    def apply(given: tuple[Any, ...]) -> list[Any]:
        update(given)
        return [v.read_value() for v in plain]

    made: Callable[[Any], Any] = tf.function(apply, autograph=False, reduce_retracing=True)
    return made


def _kind(gradient: Any) -> Any:
    return (gradient.indices.dtype, gradient.values.dtype) if is_sparse(gradient) else gradient.dtype


def _signature(gradient: Any, variable: Any) -> Any:
    """Return a gradient's form. The number of rows of a sparse one is open, so that batches of all sizes share a function."""
    if is_sparse(gradient):
        return tf.IndexedSlicesSpec(
            tf.TensorShape(variable.shape),
            gradient.values.dtype,
            gradient.indices.dtype,
            gradient.dense_shape.dtype,
            tf.TensorShape([None]),
        )
    return tf.TensorSpec(variable.shape, gradient.dtype)


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


RANDOM_OPERATIONS = {
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "TruncatedNormal",
}


def operations_of(graph: Any) -> set[str]:
    """Return the names of the operations in a graph, and in the functions that it calls."""
    definition = graph.as_graph_def()
    inner = (node.op for called in definition.library.function for node in called.node_def)
    return {node.op for node in definition.node} | set(inner)


def eager_generator() -> Any:
    """Return the generator from which TensorFlow draws a seed for each random operation in eager mode.

    It is a `random.Random`, made by `tf.random.set_seed`; None without that.
    """
    return getattr(context.context(), "_rng", None)
