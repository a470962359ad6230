"""`optimizer.apply` inside a `tf.function` of the user's own.

The function gets three parts in the place of `apply`: a Python call that logs what was written since the last step, the
update, and a Python call that logs the gradients. The update is the function that redo calls, and is not inlined.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from tranlogs.base.errors import UsageError

from ..keras_internals import trained_by
from .arrays import Values
from .tap import OptimizerTap
from .tensorflow_updates import RANDOM_OPERATIONS, TensorFlowUpdates, is_sparse, operations_of, plain_variable

_DONE = np.int64(0)


# The last Python call in each graph: those of several optimizers follow each other in the order of the script.
_last_calls: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


class TensorFlowOptimizerTap(OptimizerTap):
    """A tap on an optimizer of the TensorFlow backend."""

    _updates: TensorFlowUpdates

    def _replacement(self) -> Any:
        return tf.autograph.experimental.do_not_convert(self.apply)

    def _take(self, gradients: list[Any]) -> None:
        if tf.distribute.has_strategy():
            raise UsageError(
                f"optimizer {self._name!r}: apply() was called under a tf.distribute strategy. Loops of one's own are logged "
                "on one replica; model.fit with TranLogsCallback logs several"
            )
        if tf.inside_function():
            self._put_into(tf.compat.v1.get_default_graph(), gradients)
        else:
            super()._take(gradients)

    def _put_into(self, graph: Any, gradients: list[Any]) -> None:
        if control_flow_util.GraphOrParentsInXlaContext(graph):
            raise UsageError(
                f"optimizer {self._name!r}: apply() was called in a function with jit_compile=True, which XLA fuses with the "
                "update. Leave jit_compile out, or return the gradients and call apply() outside of the function"
            )
        watcher, name = self._watcher, self._name
        if found := operations_of(graph) & RANDOM_OPERATIONS:
            watcher.saw_random_operations(sorted(found))
        watched, reads = watcher.watched(), watcher.reads()

        def begin(*values: Values) -> Any:
            watcher.begin_in_graph(name, watched, values)
            return _DONE

        def end(*values: Values) -> Any:
            parts = iter(values)
            taken = [None if form is None else form(parts) for form in forms]
            watcher.end_in_graph(name, taken, reads, list(parts))
            return _DONE

        forms: list[Callable[[Any], Any] | None] = []
        flat: list[Any] = []
        for gradient in gradients:
            forms.append(None if gradient is None else _sparse if is_sparse(gradient) else next)
            flat += [] if gradient is None else _parts(gradient)
        mask = tuple(gradient is None for gradient in gradients)
        present = tuple(self._shaped(gradients))
        before = [_last_calls[graph]] if graph in _last_calls else []
        with tf.control_dependencies(before):
            begun = tf.numpy_function(begin, [plain_variable(v).read_value() for v in watched], tf.int64)
        with tf.control_dependencies([begun]):
            self._updates.update_of(present, mask)(present)
        after = [plain_variable(v).read_value() for v in reads]
        _last_calls[graph] = tf.numpy_function(end, [*flat, *after], tf.int64)

    def _shaped(self, gradients: list[Any]) -> list[Any]:
        for gradient, variable in zip(gradients, trained_by(self._optimizer), strict=True):
            if isinstance(gradient, tf.Tensor):
                gradient.set_shape(variable.shape)
        return [gradient for gradient in gradients if gradient is not None]


def _parts(gradient: Any) -> list[Any]:
    return [gradient.values, gradient.indices, gradient.dense_shape] if is_sparse(gradient) else [gradient]


def _sparse(parts: Any) -> Any:
    return tf.IndexedSlices(next(parts), next(parts), next(parts))
