"""Keras on TensorFlow: graph, XLA and eager steps, several steps an execution, and replicas (weights only)."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tranlogs.errors import UsageError
from tranlogs.types import AnyArray, SparseArray

from ..adapt import Values, from_array, to_array
from ..private import trained_by
from .base import Backend, Gradients, OneStep, Tap, Watcher, check_one_update

_END_OF_DATA = (StopIteration, tf.errors.OutOfRangeError)


class TensorFlowBackend(Backend):
    """See `Backend`."""

    name = "tensorflow"
    is_prefetching = True
    watches_values = True

    def __init__(self) -> None:
        super().__init__()
        self._readers: dict[tuple[int, ...], tuple[Callable[[], Any], Any]] = {}
        self._applies: dict[Any, tuple[Callable[[Any], Any], Any]] = {}
        self._held: list[Values] = []  # views of what variables held: a variable that is written gets other memory

    # Values.

    def values_of(self, variables: Sequence[Any]) -> list[Values]:
        if not variables:
            return []
        key = tuple(map(id, variables))
        if key not in self._readers:
            self._readers[key] = _reader(variables), list(variables)  # which keeps the ids theirs
        return [_host(value) for value in self._readers[key][0]()]

    def assign(self, variable: Any, values: Values) -> None:
        plain = _variable(variable)
        plain.assign(tf.constant(values, dtype=plain.dtype))

    def parts_of(self, variable: Any) -> list[Any]:
        parts = getattr(_variable(variable), "values", None)
        return list(parts) if isinstance(parts, tuple) and len(parts) > 1 else [variable]

    def remember(self, variables: Sequence[Any], values: list[Values] | None = None) -> None:
        self._held = self.values_of(variables) if values is None else values

    def forget(self) -> None:
        self._held = []  # else the next write has to copy what is held

    def changed(self, variables: Sequence[Any], values: list[Values] | None = None) -> list[int]:
        if len(self._held) != len(variables):
            return list(range(len(variables)))
        now = self.values_of(variables) if values is None else values
        return [i for i, (a, b) in enumerate(zip(self._held, now)) if not _is_same_memory(a, b) and a.tobytes() != b.tobytes()]

    # What distributes a model, and what its batches look like.

    def strategy_of(self, model: Any) -> Any:
        strategy = model.distribute_strategy
        return strategy if tf.distribute.has_strategy() or model._distribute_strategy is not None else None

    def replicas_of(self, model: Any) -> int:
        return int(model.distribute_strategy.num_replicas_in_sync)

    def specs_of(self, epoch_iterator: Any) -> Any:
        return epoch_iterator._distributed_dataset.element_spec

    # Steps.

    def prepare_apply(self, model: Any) -> None:
        if self._model is not model:
            self._applies.clear()
        super().prepare_apply(model)
        self.is_eager = bool(model.run_eagerly)

    def make_tap(self, model: Any, watcher: Watcher, splits: bool) -> Tap:
        return TensorFlowTap(model, watcher, splits)

    def apply(self, gradients: Gradients, reading: Sequence[Any] = ()) -> list[Values]:
        given = tuple(g for g in gradients if g is not None)
        mask = tuple(g is None for g in gradients)
        if self.is_eager:
            self._update(given, mask)
            return self.values_of(reading)
        reads_itself = bool(reading) and not self._model.jit_compile  # XLA would copy what it reads
        key = mask, tuple(map(_kind, given)), tuple(map(id, reading)) if reads_itself else ()
        if key not in self._applies:  # one function a form of gradients, made of their forms alone: live and in redo the same
            self._applies[key] = self._make_apply(given, mask, reading if reads_itself else ()), list(reading)
        values = self._applies[key][0](given)
        return [_host(value) for value in values] if reads_itself else self.values_of(reading)

    def _make_apply(self, given: tuple[Any, ...], mask: tuple[bool, ...], reading: Sequence[Any]) -> Callable[[Any], Any]:
        plain = [_variable(v) for v in reading]

        def apply(given: tuple[Any, ...]) -> list[Any]:
            self._update(given, mask)
            return [v.read_value() for v in plain]

        made: Callable[[Any], Any] = tf.function(apply, input_signature=[tuple(map(_signature, given))],
                                                 jit_compile=bool(self._model.jit_compile), autograph=False)  # fmt: skip
        return made

    def _update(self, given: tuple[Any, ...], mask: tuple[bool, ...]) -> None:
        optimizer, left = self._model.optimizer, iter(given)
        gradients = [None if is_none else next(left) for is_none in mask]
        type(optimizer).apply(optimizer, gradients, trained_by(optimizer))

    # Gradients.

    def to_host(self, gradient: Any) -> AnyArray:
        if not isinstance(gradient, tf.IndexedSlices):
            return to_array(_host(gradient))
        indices = np.asarray(gradient.indices)
        shape = tuple(int(n) for n in gradient.dense_shape)
        return SparseArray(shape, to_array(indices.astype(np.int64).reshape(1, -1)), to_array(_host(gradient.values)), False)

    def form_of(self, gradient: Any) -> tuple[str, str] | None:
        if isinstance(gradient, tf.IndexedSlices):
            return gradient.indices.dtype.name, gradient.dense_shape.dtype.name
        return None

    def to_device(self, array: AnyArray, form: tuple[str, str] | None) -> Any:
        if not isinstance(array, SparseArray):
            return tf.constant(from_array(array))
        assert form is not None
        indices = from_array(array.indices).reshape(-1)
        return tf.IndexedSlices(tf.constant(from_array(array.values)), tf.constant(indices, form[0]),
                                tf.constant(array.shape, form[1]))  # fmt: skip

    # The environment.

    def describe(self, model: Any) -> dict[str, Any]:
        config = tf.config
        return {
            "tensorflow": str(tf.__version__),
            "devices": sorted({_variable(v).device.rpartition("device:")[2].partition(":")[0] for v in model.variables}),
            "jit_compile": bool(model.jit_compile), "run_eagerly": bool(model.run_eagerly),
            "intra_op_threads": config.threading.get_intra_op_parallelism_threads(),
            "inter_op_threads": config.threading.get_inter_op_parallelism_threads(),
            "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1" if platform.machine() == "x86_64" else "0"),
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
            "deterministic": bool(config.experimental.get_synchronous_execution()),
        }  # fmt: skip


class TensorFlowTap(Tap):
    """Keras's train step with the gradients among its outputs."""

    def __init__(self, model: Any, watcher: Watcher, splits: bool) -> None:
        self._stash: list[tuple[Any, ...]] | None = None  # while a train step is being traced
        self._mask: tuple[bool, ...] = ()
        super().__init__(model, watcher, splits)

    def _put_between(self) -> None:
        self._replace(self._optimizer, "apply", self._take)
        self._replace(self._model, "train_step", self._train_step)

    def _take(self, grads: Any, trainable_variables: Any = None) -> None:
        if self._stash is None:  # somebody else's update
            type(self._optimizer).apply(self._optimizer, grads, trainable_variables)
            return
        grads = list(grads)
        wanted = trained_by(self._optimizer)
        given = wanted if trainable_variables is None else list(trainable_variables)
        by_id = {id(v): g for v, g in zip(given, grads)}
        ordered = [by_id.get(id(v)) for v in wanted]
        if len(given) != len(grads) or {id(v) for v in given} - {id(v) for v in wanted}:
            raise UsageError("train_step applies gradients to variables that the optimizer was not built for")
        self._mask = tuple(g is None for g in ordered)
        self._stash.append(tuple(g for g in ordered if g is not None))

    def _train_step(self, data: Any) -> Any:
        self._stash = []
        try:
            logs = type(self._model).train_step(self._model, data)
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
                    if logs is None:
                        raise
                    break
        return logs

    def _step(self, iterator: Any) -> Any:
        self._watcher.begin_step()
        found = self._one(iterator)
        if not self._splits:
            self._watcher.end_step()
            return found
        given = iter(found["gradients"])
        self._watcher.take_gradients([None if is_none else next(given) for is_none in self._mask])
        return found["logs"]


def _reader(variables: Sequence[Any]) -> Callable[[], Any]:
    """Reads all of them in one call, and copies nothing."""
    plain = [_variable(v) for v in variables]
    if all(isinstance(v, tf.Variable) for v in variables):  # components of replicas lie on devices of their own
        return lambda: [v.read_value() for v in plain]
    made: Callable[[], Any] = tf.function(lambda: [v.read_value() for v in plain], autograph=False).get_concrete_function()
    return made


def _variable(variable: Any) -> Any:
    """The tf.Variable of a Keras variable, or itself."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def _host(tensor: Any) -> Values:
    """A tensor's memory, or a copy where numpy cannot look at it (another device, bfloat16)."""
    try:
        return np.asarray(memoryview(tensor))
    except (ValueError, TypeError, BufferError, NotImplementedError):
        return np.asarray(tensor.numpy())


def _is_same_memory(a: Values, b: Values) -> bool:
    return bool(a.__array_interface__["data"][0] == b.__array_interface__["data"][0])


def _kind(gradient: Any) -> Any:
    return (gradient.indices.dtype, gradient.values.dtype) if isinstance(gradient, tf.IndexedSlices) else gradient.dtype


def _signature(gradient: Any) -> Any:
    """A gradient's form: the number of a sparse one's rows is left open, so that batches of all sizes share a function."""
    if isinstance(gradient, tf.IndexedSlices):
        shape = tf.TensorShape([int(n) for n in gradient.dense_shape])
        return tf.IndexedSlicesSpec(shape, gradient.values.dtype, gradient.indices.dtype, gradient.dense_shape.dtype,
                                    tf.TensorShape([None]))  # fmt: skip
    return tf.TensorSpec(gradient.shape, gradient.dtype)
