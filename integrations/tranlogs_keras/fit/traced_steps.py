"""Compiled steps that one fit of a model leaves to the next: tracing them takes seconds, and many scripts fit many times.

Keras keeps its train function until `compile` is called. What TranLogs puts in its place is kept as long, and made anew as
well where a plain setting of the model, a layer or an optimizer has changed: a resumed process traces after that change.
"""

from __future__ import annotations

import types
from operator import is_
from typing import Any, NamedTuple

from .. import keras_internals
from ..backends import Backend
from ..state.variables import optimizers_of

_NAME = "_tranlogs_steps"  # an attribute of the model, which ends with it
_PLAIN = (bool, int, float, str, bytes, tuple, type(None), types.FunctionType)


class _Constants(NamedTuple):
    """What a traced step has as constants.

    Attributes:
        objects: compared by identity; they are kept, so that no other object gets their ids.
        settings: compared by value.
    """

    objects: list[Any]
    settings: list[Any]

    def are(self, others: _Constants) -> bool:
        same = len(self.objects) == len(others.objects) and all(map(is_, self.objects, others.objects))
        return same and self.settings == others.settings


class TracedSteps:
    """The backend of the last fit of a model, with the functions that it has made for the model."""

    def __init__(self, backend: Backend, constants: _Constants) -> None:
        self.backend, self.constants = backend, constants


def backend_with_steps(model: Any, fresh: Backend) -> Backend:
    """Return the backend of the model's fit before, if its compiled steps are still right; else the fresh one."""
    constants = _constants_of(model, fresh)
    known = vars(model).get(_NAME)
    if known is not None and known.constants.are(constants):
        backend: Backend = known.backend
        return backend
    vars(model)[_NAME] = TracedSteps(fresh, constants)  # Keras would look for layers in it
    return fresh


def _constants_of(model: Any, backend: Backend) -> _Constants:
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
    return _Constants(objects, settings)
