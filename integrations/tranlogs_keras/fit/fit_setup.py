"""Put the parts of a logged fit together: its variables, its compiled steps, its journal.

`fit` makes some variables while it takes its first step, and a checkpoint comes before it. With a `train_step` of the user's
own, only that step shows which optimizer trains which variables, so it is rehearsed: traced where the backend can trace it,
else taken once on a batch and undone, with updates that build the optimizer and change nothing.

One fit of a model leaves its compiled steps to the next: tracing them takes seconds, and many scripts fit many times. Keras
keeps its train function until `compile` is called. What TranLogs puts in its place is kept as long, and made anew as well where
a plain setting of the model, a layer or an optimizer has changed: a resumed process traces after that change.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras

from tranlogs.base.errors import UsageError
from tranlogs.training import LiveReport, Rung, RunResources

from .. import keras_internals
from ..backends import Backend
from ..capture.steps import StepCapture
from ..run.run_parts import RunParts
from ..settings import Settings
from ..state import rng
from ..state.state import KerasState
from ..state.variables import Variables, kept_with, matched, optimizers_of

_log = logging.getLogger("tranlogs")


def make_parts(
    model: Any,
    backend: Backend,
    settings: Settings,
    resources: RunResources,
    report: LiveReport,
    *,
    recorded: dict[str, Any] | None,
    rung: Rung,
    expects: Callable[[], bool],
) -> RunParts:
    """Return the parts of a fit. `recorded` is the description in the newest checkpoint, if the fit continues from it."""
    log, why = settings.choose_log(model, backend)
    splits = log == "gradients"
    if recorded is not None and "inputs" not in (log, recorded["log"]):  # as the run has found out
        log, splits = recorded["log"], recorded["splits"]
    if why and recorded is None:
        _log.warning("%s: weights are logged, not gradients: %s", settings.run, why)
    state = KerasState(Variables(model, backend, is_whole=log == "weights"), backend, log, settings.shared.fingerprint)
    state.environment, state.splits = resources.environment, splits
    state.describe()
    can_change = not keras_internals.has_own_train_step(model)
    steps = StepCapture(
        settings.run,
        state,
        resources.journal,
        rung,
        lambda note: report.warn(note, False),
        expects=expects,
        can_change=can_change,
    )
    return RunParts(settings.run, state, steps, resources, report)


_ROWS_MAX = 32


def build_for_fit(model: Any, backend: Backend, epoch_iterator: Any) -> None:
    """Make the variables that the fit will make in its first step.

    An optimizer that the step does not use stays as it is.
    """
    failure = None
    if _needs_rehearsal(model, backend):
        try:
            return _rehearse(model, backend, epoch_iterator)
        except Exception as error:  # whatever a train_step raises on such a batch
            failure = error
    _build_symbolically(model, backend, epoch_iterator)
    # On JAX an optimizer cannot be built by a step: one without variables is not used.
    if failure is not None and (unbuilt := _unbuilt(model)):
        raise UsageError(
            f"model.{unbuilt[0]} has no variables yet, and rehearsing train_step did not show which variables it trains "
            f"({type(failure).__name__}: {failure}). Call model.{unbuilt[0]}.build(...) on the variables that it trains, "
            "before fit"
        ) from failure
    return None


def build_as_recorded(model: Any, backend: Backend, meta: dict[str, Any]) -> None:
    """Build the optimizers that a later step of the run has built, on the variables that they train in its checkpoint."""
    unbuilt = [which for which in _unbuilt(model) if meta["optimizers"].get(which, {}).get("trains")]
    if not unbuilt:
        return
    variables = Variables(model, backend, is_whole=True)
    recorded = [item for item in meta["variables"] if item[0].startswith("param/")]
    slots, unlike = matched(recorded, [*variables.trained, *variables.others])
    for which in [] if unlike else unbuilt:  # another model: recovery names what differs
        optimizer = variables.optimizers[which]
        _build_only(optimizer, recorded, [slots[name].variable for name in meta["optimizers"][which]["trains"]])


class LateOptimizers:
    """The optimizers that no step has used yet. One that a later step builds has to be in a checkpoint for a resume."""

    def __init__(self, model: Any) -> None:
        self._model, self._unbuilt = model, _unbuilt(model)

    def find_built(self) -> list[str]:
        """Return those that were built since the last call, by attribute of the model."""
        if not self._unbuilt:
            return []
        before, self._unbuilt = self._unbuilt, _unbuilt(self._model)
        return [which for which in before if which not in self._unbuilt]


def _needs_rehearsal(model: Any, backend: Backend) -> bool:
    if not keras_internals.has_own_train_step(model) or backend.replicas_of(model) > 1 or backend.name == "jax":
        return False
    return not keras_internals.is_built(model) or bool(_unbuilt(model))


def _unbuilt(model: Any) -> list[str]:
    return [which for which, optimizer in optimizers_of(model).items() if not optimizer.built]


def _build_symbolically(model: Any, backend: Backend, epoch_iterator: Any) -> None:
    specs = backend.specs_of(epoch_iterator)
    if specs is None or model.optimizer is None:
        return
    try:
        keras_internals.symbolic_build(model, specs)
    except Exception as error:
        if not keras_internals.is_built(model):
            raise UsageError(
                f"the model cannot be built before its first step ({error}). Call it once on a batch before fit, so that all "
                "its variables are there"
            ) from error


def _rehearse(model: Any, backend: Backend, epoch_iterator: Any) -> None:
    with _updates_that_build(model):
        if backend.trace_step(model, epoch_iterator):
            return
        variables = [*model.variables, *(v for o in optimizers_of(model).values() for v in o.variables)]
        values = [value.copy() for value in backend.values_of(variables)]
        numbers, attributes = rng.get_rng(backend), _plain_attributes(model)
        try:
            model.train_step(
                keras_internals.tree.map_structure(keras.ops.convert_to_tensor, _batch(epoch_iterator.data_adapter))
            )
        finally:
            for variable, value in zip(variables, values, strict=True):
                backend.assign(variable, value)
            model.reset_metrics()
            for name, value in attributes.items():
                setattr(model, name, value)
            rng.set_rng(numbers, backend)


@contextlib.contextmanager
def _updates_that_build(model: Any) -> Iterator[None]:
    optimizers = [optimizer for optimizer in optimizers_of(model).values() if "apply" not in vars(optimizer)]
    for optimizer in optimizers:
        optimizer.apply = functools.partial(_build_only, optimizer)
    try:
        yield
    finally:
        for optimizer in optimizers:
            del optimizer.apply


def _build_only(optimizer: Any, gradients: Any, trainable_variables: Any = None) -> None:
    """Build the optimizer, as `optimizer.apply` does before its first update."""
    if trainable_variables is not None and not optimizer.built and len(gradients):
        with keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(list(trainable_variables))
        optimizer.built = True


def _plain_attributes(model: Any) -> dict[str, Any]:
    """Return counters and switches of the user's own, which a train_step may change."""
    return {name: value for name, value in vars(model).items() if type(value) in (bool, int, float) and name[0] != "_"}


def _batch(adapter: Any) -> Any:
    """Return a batch as the data would give it. Keras looks at the first one, too, before it trains."""
    if isinstance(adapter, keras_internals.ArrayDataAdapter):
        rows = min(adapter.batch_size, _ROWS_MAX)
        return keras_internals.tree.map_structure(lambda array: array[:rows], adapter._inputs)
    if isinstance(adapter, keras_internals.GeneratorDataAdapter):
        return adapter._first_batches[0]
    if isinstance(adapter, keras_internals.PyDatasetAdapter):
        return adapter.py_dataset[0]
    if isinstance(adapter, keras_internals.TorchDataLoaderAdapter):
        return next(iter(adapter._dataloader))
    raise UsageError(f"a {type(adapter).__name__} cannot be looked at")


_NAME = "_tranlogs_steps"  # an attribute of the model, which ends with it
_PLAIN = (bool, int, float, str, bytes, tuple, type(None), types.FunctionType)


def backend_with_steps(model: Any, fresh: Backend) -> Backend:
    """Return the backend of the model's fit before, if its compiled steps are still right; else the fresh one."""
    objects, settings = _constants_of(model, fresh)
    backend, known = kept_with(model, _NAME, objects, lambda: (fresh, settings))
    if known != settings:
        del vars(model)[_NAME]
        backend, _ = kept_with(model, _NAME, objects, lambda: (fresh, settings))
    return backend


def _constants_of(model: Any, backend: Backend) -> tuple[list[Any], list[Any]]:
    """Return what a traced step has as constants: objects, compared by identity, and settings, compared by value."""
    optimizers = list(optimizers_of(model).values())
    layers = [model, *keras_internals.layers_within(model)]
    single = [part for optimizer in optimizers for part in keras_internals.layers_of(optimizer)]
    rates = [keras_internals.learning_rate_of(optimizer) for optimizer in optimizers]
    objects = [*layers, *single, *rates, *keras_internals.compiled_parts(model), *model.trainable_variables]
    settings: list[Any] = [keras_internals.compile_settings(model)]
    for thing in [*layers, *single]:
        settings.append({name: value for name, value in vars(thing).items() if name[0] != "_" and type(value) in _PLAIN})
    if backend.name == "jax":  # a traced step has the states of recurrent layers as constants
        states = keras_internals.recurrent_states(model)
        settings += [value.tobytes() for value in backend.values_of(states)]
    return objects, settings
