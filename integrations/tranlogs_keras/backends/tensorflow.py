"""Keras on TensorFlow: graph, XLA and eager steps, several steps an execution, and replicas (weights only)."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

import numpy as np
import tensorflow as tf

from tranlogs.base.errors import UsageError
from tranlogs.base.types import AnyArray, SparseArray

from ..keras_internals import trained_by
from .arrays import Values, from_array, to_array
from .backend import Backend
from .tap import ApplyWatcher, Gradients, OneStep, OptimizerTap, StepWatcher, Tap, Updates, check_one_update
from .tensorflow_optimizer_tap import TensorFlowOptimizerTap
from .tensorflow_updates import (
    APART,
    RANDOM_OPERATIONS,
    TensorFlowUpdates,
    TensorViews,
    addresses_of,
    eager_generator,
    host_view,
    host_views,
    is_sparse,
    operations_of,
    plain_variable,
    reader_of,
)

_END_OF_DATA = (StopIteration, tf.errors.OutOfRangeError)


class TensorFlowBackend(Backend):
    """The TensorFlow backend of Keras."""

    name = "tensorflow"
    is_prefetching = True
    watches_values = True

    def __init__(self) -> None:
        super().__init__()
        self._readers: dict[tuple[int, ...], tuple[Callable[[], Any], Any]] = {}
        self.updates: TensorFlowUpdates  # of the model's optimizer
        self._held: Sequence[Values] = []  # views of what variables held: a variable that is written gets other memory

    # Values.

    def values_of(self, variables: Sequence[Any]) -> Sequence[Values]:
        if not variables:
            return []
        key = tuple(map(id, variables))
        if key not in self._readers:
            self._readers[key] = reader_of(variables), list(variables)  # which keeps the ids theirs
        return TensorViews(self._readers[key][0]())

    def assign(self, variable: Any, values: Values) -> None:
        plain = plain_variable(variable)
        plain.assign(tf.constant(values, dtype=plain.dtype))

    def random_generator(self) -> Any:
        return eager_generator()

    def parts_of(self, variable: Any) -> list[Any]:
        parts = getattr(plain_variable(variable), "values", None)
        return list(parts) if isinstance(parts, tuple) and len(parts) > 1 else [variable]

    def remember(self, variables: Sequence[Any], values: Sequence[Values] | None = None) -> None:
        self._held = self.values_of(variables) if values is None else values

    def forget(self) -> None:
        self._held = []  # else the next write has to copy what is held

    def changed(self, variables: Sequence[Any], values: Sequence[Values] | None = None) -> list[int]:
        if len(self._held) != len(variables):
            return list(range(len(variables)))
        now = list(self.values_of(variables) if values is None else values)
        if (was_at := addresses_of(self._held)) == (is_at := addresses_of(now)):
            return []
        return [
            i
            for i, (a, b) in enumerate(zip(self._held, now, strict=True))
            if was_at[i] != is_at[i] and a.tobytes() != b.tobytes()
        ]

    # What distributes a model, and what its batches look like.

    def strategy_of(self, model: Any) -> Any:
        strategy = model.distribute_strategy
        return strategy if tf.distribute.has_strategy() or model._distribute_strategy is not None else None

    def replicas_of(self, model: Any) -> int:
        return int(model.distribute_strategy.num_replicas_in_sync)

    def specs_of(self, epoch_iterator: Any) -> Any:
        return epoch_iterator._distributed_dataset.element_spec

    def trace_step(self, model: Any, epoch_iterator: Any) -> bool:
        if model.run_eagerly:
            return False
        tf.function(lambda data: model.train_step(data)).get_concrete_function(self.specs_of(epoch_iterator))
        return True

    # Steps.

    def prepare_apply(self, model: Any) -> None:
        if self._model is not model:
            self.updates = TensorFlowUpdates(model.optimizer, self.values_of, jit_compile=bool(model.jit_compile))
        super().prepare_apply(model)
        self.is_eager = self.updates.is_eager = bool(model.run_eagerly)

    def make_tap(self, model: Any, splits: bool) -> Tap:
        self.combines = not self.is_eager and self.strategy_of(model) is None
        return TensorFlowTap(self, model, splits)

    def apply(self, gradients: Gradients, reading: Sequence[Any] = ()) -> Sequence[Values]:
        return self.updates.apply(gradients, reading)

    def updates_of(self, optimizer: Any) -> TensorFlowUpdates:
        return TensorFlowUpdates(optimizer, self.values_of)

    def tap_optimizer(self, optimizer: Any, name: str, watcher: ApplyWatcher, updates: Updates) -> OptimizerTap:
        return TensorFlowOptimizerTap(optimizer, name, watcher, updates)

    # Gradients.

    def to_host(self, gradient: Any) -> AnyArray:
        if not is_sparse(gradient):
            return super().to_host(gradient)
        indices = np.asarray(gradient.indices)
        shape = tuple(int(n) for n in gradient.dense_shape)
        return SparseArray(
            shape, to_array(indices.astype(np.int64).reshape(1, -1)), to_array(host_view(gradient.values)), False
        )

    def forms_of(self, gradients: Gradients) -> list[Any] | None:
        if tf.IndexedSlices in map(type, gradients):
            return None
        return super().forms_of(gradients)

    def host_of(self, tensors: Sequence[Any]) -> list[Values]:
        return host_views(tensors)

    def form_of(self, gradient: Any) -> tuple[str, str] | None:
        if is_sparse(gradient):
            return gradient.indices.dtype.name, gradient.dense_shape.dtype.name
        return None

    def to_device(self, array: AnyArray, form: tuple[str, str] | None) -> Any:
        if not isinstance(array, SparseArray):
            return tf.constant(from_array(array))
        assert form is not None
        indices = from_array(array.indices).reshape(-1)
        return tf.IndexedSlices(
            tf.constant(from_array(array.values)), tf.constant(indices, form[0]), tf.constant(array.shape, form[1])
        )

    # The environment.

    def describe(self, model: Any) -> dict[str, Any]:
        config = tf.config
        return {
            "tensorflow": str(tf.__version__),
            "devices": sorted({plain_variable(v).device.rpartition("device:")[2].partition(":")[0] for v in model.variables}),
            "jit_compile": bool(model.jit_compile),
            "run_eagerly": bool(model.run_eagerly),
            "intra_op_threads": config.threading.get_intra_op_parallelism_threads(),
            "inter_op_threads": config.threading.get_inter_op_parallelism_threads(),
            "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1" if platform.machine() == "x86_64" else "0"),
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
            "deterministic": bool(config.experimental.get_synchronous_execution()),
        }


class TensorFlowTap(Tap):
    """Keras's train step with the gradients among its outputs; where possible, both halves of a step in one graph."""

    def __init__(self, backend: TensorFlowBackend, model: Any, splits: bool) -> None:
        self._backend = backend
        self._stash: list[dict[str, Any]] | None = None  # while a train step is being traced
        self._whole: WholeStep | None = None
        self._random: set[str] = set()  # operations of the train step whose numbers cannot be recovered
        super().__init__(model, splits)
        self._places = [str(i) for i in range(len(trained_by(self._optimizer)))] if splits else []

    def attach(self, watcher: StepWatcher) -> None:
        super().attach(watcher)
        if self._random:  # found by an earlier fit, as the step was traced
            watcher.saw_random_operations(sorted(self._random))

    def _put_between(self) -> None:
        self._replace(self._optimizer, "apply", self._take)
        self._replace(self._model, "train_step", self._train_step)

    def _put_around(self) -> None:
        if "train_step" not in vars(self._model):  # one that the script has set stays, and is not looked into
            self._replace(self._model, "train_step", self._whole_train_step)

    def _whole_train_step(self, data: Any) -> Any:
        """Run the train step, and find in its graph the random operations whose numbers cannot be recovered."""
        logs = type(self._model).train_step(self._model, data)
        if tf.inside_function():
            self._random |= operations_of(tf.compat.v1.get_default_graph()) & RANDOM_OPERATIONS
            if self._random:
                self._watcher.saw_random_operations(sorted(self._random))
        return logs

    def _take(self, grads: Any, trainable_variables: Any = None) -> None:
        if self._stash is None:  # somebody else's update
            type(self._optimizer).apply(self._optimizer, grads, trainable_variables)
            return
        grads = list(grads)
        wanted = trained_by(self._optimizer)
        given = wanted if trainable_variables is None else list(trainable_variables)
        by_id = {id(v): g for v, g in zip(given, grads)}
        if len(given) != len(grads) or {id(v) for v in given} - {id(v) for v in wanted}:
            raise UsageError("train_step applies gradients to variables that the optimizer was not built for")
        self._stash.append({str(i): by_id[id(v)] for i, v in enumerate(wanted) if by_id.get(id(v)) is not None})

    def _train_step(self, data: Any) -> Any:
        self._stash = []
        try:
            logs = self._whole_train_step(data)
            found = self._stash
        finally:
            self._stash = None
        check_one_update(len(found))
        return {"logs": logs, "gradients": found[0]}

    def _steps(self, iterator: Any) -> Any:
        logs = None
        executions = self._model.steps_per_execution
        with OneStep(self._model):
            for _ in range(executions):
                try:
                    logs = self._step(iterator)
                except _END_OF_DATA:
                    self._watcher.drop_step()
                    if logs is None:
                        raise
                    break
        return logs

    def _step(self, iterator: Any) -> Any:
        watcher = self._watcher
        watcher.begin_step()
        if not self._splits:
            found = self._one(iterator)
            watcher.end_step()
            return found
        if watcher.wants_halves() or not isinstance(iterator, tf.data.Iterator):
            found = self._one(iterator)
            watcher.take_gradients([found["gradients"].get(place) for place in self._places])
            return found["logs"]
        reads = watcher.reads()
        if self._whole is None or not self._whole.returns(reads):
            self._whole = WholeStep(self._one, self._update, reads)
        logs, gradients, values = self._whole(iterator)
        watcher.take_step([gradients.get(place) for place in self._places], TensorViews(values))
        return logs

    def _update(self, gradients: dict[str, Any]) -> None:
        given = [gradients.get(place) for place in self._places]
        for gradient, variable in zip(given, trained_by(self._optimizer), strict=True):
            if isinstance(gradient, tf.Tensor):
                gradient.set_shape(variable.shape)
        present = tuple(g for g in given if g is not None)
        self._backend.updates.update_of(present, tuple(g is None for g in given))(present)


class WholeStep:
    """A step in one call: Keras's train step and the update as two functions that are not inlined, side by side in a graph."""

    def __init__(self, one: Callable[[Any], Any], update: Callable[[Any], None], reads: Sequence[Any]) -> None:
        self._reads = reads
        plain = [plain_variable(v) for v in reads]
        step = tf.function(lambda data: one([data]), autograph=False, reduce_retracing=True, experimental_attributes=APART)

        def whole(iterator: Any) -> tuple[Any, Any, list[Any]]:
            found = step(iterator.get_next())
            update(found["gradients"])
            return found["logs"], found["gradients"], [v.read_value() for v in plain]

        self._function = tf.function(whole, autograph=False, reduce_retracing=True)
        self._known: Any = None  # the iterator of the last call, and the function for its kind
        self._concrete: Any = None

    def returns(self, reads: Sequence[Any]) -> bool:
        """Return True if these are the variables whose values a step returns."""
        if reads is not self._reads:
            if len(reads) != len(self._reads) or not all(map(is_, reads, self._reads)):
                return False
            self._reads = reads
        return True

    def __call__(self, iterator: Any) -> Any:
        if iterator is not self._known:
            found = self._function(iterator)
            self._known, self._concrete = iterator, None
            return found
        if self._concrete is None:
            self._concrete = self._function.get_concrete_function(iterator)
        return self._concrete(iterator)
