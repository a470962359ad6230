"""Every name of Keras's inside that TranLogs needs, and nothing else: what a new version of Keras can break is here.

`model.fit` has no place to enter an epoch in its middle, and no hook between gradients and update. What is used instead
was read in the sources of Keras 3.13 to 3.15 and is checked against the Keras that is installed, at import.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
from collections.abc import Iterable
from typing import Any

import keras
from keras.src import tree as tree
from keras.src.backend.common import global_state
from keras.src.callbacks.callback_list import CallbackList as CallbackList
from keras.src.optimizers.base_optimizer import BaseOptimizer as BaseOptimizer
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR, global_seed_generator
from keras.src.saving import saving_lib
from keras.src.trainers.data_adapters import array_slicing as array_slicing
from keras.src.trainers.data_adapters import data_adapter_utils
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter as ArrayDataAdapter
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter as GeneratorDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter as PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter as TFDatasetAdapter
from keras.src.trainers.data_adapters.torch_data_loader_adapter import TorchDataLoaderAdapter as TorchDataLoaderAdapter
from keras.src.trainers.epoch_iterator import EpochIterator as EpochIterator
from keras.src.trainers.trainer import Trainer
from keras.src.utils.rng_utils import get_random_seed as get_random_seed

from tranlogs.base.errors import UsageError

VERSIONS = (3, 13), (3, 15)  # the first and the last that were tried

_EXPECTED: dict[Any, tuple[str, ...]] = {
    EpochIterator: ("_enumerate_iterator", "_get_iterator", "_interrupted_warning", "catch_stop_iteration", "reset"),
    Trainer: ("_symbolic_build", "_get_metrics_result_or_logs", "reset_metrics", "get_metrics_result"),
    BaseOptimizer: ("apply", "build", "finalize_variable_values", "_use_weight_decay", "_var_key"),
    ArrayDataAdapter: ("get_tf_dataset", "get_torch_dataloader", "get_jax_iterator"),
    PyDatasetAdapter: ("on_epoch_begin", "on_epoch_end", "_get_iterator"),
    array_slicing: ("convert_to_sliceable", "TensorflowSparseWrapper", "slice_tensorflow_sparse_wrapper"),
    data_adapter_utils: ("NUM_BATCHES_FOR_TENSOR_SPEC",),
    saving_lib: ("_save_state", "H5IOStore"),
}


def check_keras() -> None:
    """Check that TranLogs supports this version of Keras.

    Raises:
        UsageError: it does not; the message lists the supported versions, or what is missing.
    """
    installed = tuple(int(part) for part in keras.__version__.split(".")[:2])
    first, last = (".".join(map(str, version)) for version in VERSIONS)
    if not VERSIONS[0] <= installed <= VERSIONS[1]:
        raise UsageError(
            f"Keras {keras.__version__} is not supported: TranLogs resumes inside model.fit, which was tried with "
            f"Keras {first} to {last} (pip install 'keras>={first},<{last.split('.')[0]}.{VERSIONS[1][1] + 1}')"
        )
    missing = [
        f"{getattr(owner, '__name__', owner)}.{name}"
        for owner, names in _EXPECTED.items()
        for name in names
        if not hasattr(owner, name)
    ]
    source = inspect.getsource(EpochIterator._enumerate_iterator)
    missing += [f"EpochIterator.{name}" for name in ("_steps_seen", "_num_batches", "_current_iterator") if name not in source]
    if missing:
        raise UsageError(f"Keras {keras.__version__} lacks what TranLogs needs of it: {', '.join(missing)}")


def find_fit(model: Any) -> tuple[EpochIterator, CallbackList, int]:
    """Return the epoch iterator, the callbacks and the number of epochs of the running `model.fit`.

    Raises:
        UsageError: no `fit` of this model is on the stack.
    """
    found = _locals_of_fit(model)
    if "epoch_iterator" not in found:
        raise UsageError("TranLogsCallback works inside model.fit(callbacks=[...]) of a Keras model; no such call is running")
    return found["epoch_iterator"], found["callbacks"], found["epochs"]


def _locals_of_fit(model: Any) -> dict[str, Any]:
    """Return the local variables of the running `model.fit`; none if there is no such call."""
    frame: Any = sys._getframe()
    while frame is not None and not (frame.f_code.co_name == "fit" and frame.f_locals.get("self") is model):
        frame = frame.f_back
    return {} if frame is None else frame.f_locals


def is_in_fit(model: Any) -> bool:
    """Return True if `model.fit` is running."""
    return bool(_locals_of_fit(model))


def last_logs(model: Any) -> dict[str, float] | None:
    """Return what the last train step of the running `model.fit` reported; None if that is not a dict of numbers."""
    try:
        logs = _locals_of_fit(model)["logs"]
        return {str(name): float(v.detach() if hasattr(v, "detach") else v) for name, v in logs.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def data_of_fit(model: Any) -> tuple[Any, Any]:
    """Return `x` and `validation_data` of the running `model.fit`."""
    found = _locals_of_fit(model)
    return found.get("x"), found.get("validation_data")


def symbolic_build(model: Any, specs: Any) -> None:
    """Make all variables of a compiled model, its metrics and its optimizer. `specs`: what a batch looks like."""
    model._symbolic_build(data_batch=specs)
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def is_built(model: Any) -> bool:
    """Return True if all layers have their variables."""
    return all(layer.built for layer in model._flatten_layers())


def layers_within(model: Any) -> list[Any]:
    """Return all layers below a model, those of nested models too."""
    return list(model._flatten_layers(include_self=False))


def has_own_train_step(model: Any) -> bool:
    """Return True if the user wrote `train_step`."""
    step = type(model).train_step
    return not step.__module__.startswith("keras.src.")


def compile_settings(model: Any) -> tuple[bool, bool, int]:
    """Return the settings of `compile` that decide how a step is computed."""
    return bool(model.run_eagerly), bool(model.jit_compile), int(model.steps_per_execution)


def compiled_parts(model: Any) -> list[Any]:
    """Return what `compile` has made of losses and metrics: other objects after each call."""
    return [model._compile_loss, model._compile_metrics, model._loss_tracker]


def own_non_trainable(model: Any) -> set[int]:
    """Ids of variables that layers keep for themselves (BatchNorm's statistics, seeds), whether frozen or not."""
    found: set[int] = set()
    for layer in model._flatten_layers():
        found |= {id(v) for v in layer._non_trainable_variables}
        found |= {id(generator.state) for generator in layer._seed_generators}
    return found


def recurrent_states(model: Any) -> list[Any]:
    """Return the variables in which stateful recurrent layers carry their state from batch to batch.

    Keras does not count them among the model's variables, so that no file of weights has them.
    """
    stateful = (layer for layer in model._flatten_layers() if getattr(layer, "stateful", False))
    found = (state for layer in stateful for state in tree.flatten(getattr(layer, "states", None) or []))
    return [state for state in found if isinstance(state, keras.Variable)]


def shows_late(name: str) -> bool:
    """Return True if a variable of an optimizer with this name need not show in the weights at the next step.

    These are averages of the weights (`use_ema=True`) and accumulated gradients (`gradient_accumulation_steps=`).
    """
    return re.sub(r"[@#]\d+", "", name).endswith(("_average", "_gradient_accumulator"))


def global_seed_state() -> Any:
    """Return the variable of Keras's global seed generator, if it exists."""
    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    return None if generator is None else generator.state


def not_converted(function: Any) -> Any:
    """Keep autograph, which compiles Python functions for TensorFlow, from rewriting a function."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.autograph.experimental.do_not_convert(function)
    return function


def outside_of_functions() -> Any:
    """Return a context in which TensorFlow computes at once, also while it compiles a function of the user's."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.init_scope()
    return contextlib.nullcontext()


def make_global_seed() -> Any:
    """Return the variable of Keras's global seed generator, which is made if it does not exist."""
    return global_seed_generator().state


def learning_rate_of(optimizer: Any) -> Any:
    """Return the learning rate that the optimizer was given: a variable, a schedule, or a callable."""
    return getattr(optimizer, "inner_optimizer", optimizer)._learning_rate


def trained_by(optimizer: Any) -> list[Any]:
    """Return the variables that a built optimizer updates, in the order of the gradients that it takes."""
    return list(getattr(optimizer, "inner_optimizer", optimizer)._trainable_variables)


def layers_of(optimizer: Any) -> list[Any]:
    """Return an optimizer, and the optimizer that it wraps, if any."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return [optimizer] if inner is None else [optimizer, inner]


def tensors_of(variables: Iterable[Any]) -> list[Any]:
    """Return the tensors of variables on PyTorch. `Variable.value` would look up Keras's scopes for each."""
    return [variable._value for variable in variables]


def undecayed(optimizer: Any) -> list[Any]:
    """Return the variables that an optimizer with weight decay excludes from it."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if getattr(inner, "weight_decay", None) is None:
        return []
    return [v for v in trained_by(optimizer) if not inner._use_weight_decay(v)]


def leave_undecayed(optimizer: Any, variables: list[Any]) -> None:
    """Exclude exactly these variables from weight decay."""
    inner, ids = getattr(optimizer, "inner_optimizer", optimizer), set(map(id, variables))
    inner._exclude_from_weight_decay_cache = {inner._var_key(v): id(v) not in ids for v in trained_by(optimizer)}


class _Layout(saving_lib.H5IOStore):  # type: ignore[misc]
    """Stand-in for a weights file that notes the place of each variable."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.names: dict[str, str] = {}

    def __bool__(self) -> bool:
        return True

    def make(self, path: str, metadata: dict[str, str] | None = None) -> Any:
        self.names[path] = (metadata or {}).get("name", "")
        return _Group(self.found, path)


class _Group(dict):  # type: ignore[type-arg]
    def __init__(self, found: dict[str, Any], path: str) -> None:
        super().__init__()
        self._found, self._path = found, path

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self._found[f"{self._path}/vars/{key}" if self._path else f"vars/{key}"] = value


def weight_layout(model: Any, optimizers: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the layout of `model.save_weights`: the variable at each place in the file, and the layers' names by path."""
    layout = _Layout()
    owned = {}
    for path, optimizer in optimizers.items():
        owned[path] = optimizer
        if hasattr(optimizer, "inner_optimizer"):
            owned[f"{path}/inner_optimizer"] = optimizer.inner_optimizer
    visited = {id(optimizer) for optimizer in owned.values()}  # they would write copies, by number
    saving_lib._save_state(model, weights_store=layout, assets_store=None, inner_path="", visited_saveables=visited)
    for path, optimizer in owned.items():
        layout.names[path] = optimizer.name
        layout.found.update({f"{path}/vars/{i}": variable for i, variable in enumerate(optimizer.variables)})
    return layout.found, layout.names


def write_weights(path: Any, groups: dict[str, dict[str, Any]], layers: dict[str, str]) -> None:
    """Write a .weights.h5 file: the values at each place, and the layers' names."""
    store = saving_lib.H5IOStore(path, mode="w")
    try:
        for group in layers:  # in Keras's own order
            held = groups.get(group, {})
            entry = store.make(group, metadata={"name": layers[group]} if layers[group] else None)
            for key, value in held.items():
                entry[key] = value
    finally:
        store.close()
