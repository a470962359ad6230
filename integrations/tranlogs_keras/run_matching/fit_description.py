"""The description of a fit by which a later fit is recognized as the same one."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable
from typing import Any

import keras

from .. import keras_internals
from ..data import describe_content
from ..state import environment
from ..state.architecture import normalized
from ..state.variables import optimizers_of

Identity = dict[str, Any]

# Callbacks change an optimizer while it trains (ReduceLROnPlateau). The first fit had the values from the script.
_described_optimizers: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def describe_identity(model: Any, epoch_iterator: Any, callbacks: Iterable[Any]) -> Identity:
    """Return what identifies a fit, as plain values that are equal in every process of the same script.

    The description covers the model, the settings of `compile`, the optimizers, the data, and the trial of a
    hyper-parameter search. The number of epochs is no part of it, so that a run can be trained on. What cannot be
    described is None and is not compared.
    """
    adapter = epoch_iterator.data_adapter
    described = _described(model) or {}
    return {
        "model": {key: value for key, value in described.items() if key != "compile_config"} or None,
        "layers": _layers(model),
        "compile": _compile_settings(model),
        "optimizers": {which: _optimizer(optimizer) for which, optimizer in optimizers_of(model).items()},
        "data": {
            **describe_content(adapter),
            "steps_per_epoch": epoch_iterator.steps_per_epoch,
            "shuffle": getattr(adapter, "_shuffle", getattr(adapter, "shuffle", None)),
        },
        "trial": _trial(callbacks),
    }


def _described(thing: Any) -> Any:
    """Return the serialized form of a Keras object, or None if it has no such form."""
    try:
        return normalized(json.loads(json.dumps(keras.saving.serialize_keras_object(thing), default=str)))
    except Exception:  # an object of the user's own may raise anything
        return None


def _layers(model: Any) -> list[Any] | None:
    """Return the layers of a model class of the user's own, whose configuration need not name them."""
    if type(model).__module__.startswith("keras.src."):
        return None
    return [{"class": type(layer).__name__, "config": _described(layer)} for layer in keras_internals.layers_within(model)]


def _compile_settings(model: Any) -> dict[str, Any]:
    """Return losses, metrics and weights of losses. A compile() of the user's own may serialize none of them."""
    try:
        config = model.get_compile_config() or {}
    except Exception:  # an override of the user's own may raise anything: there is nothing to compare then
        config = {}
    # How a model is compiled is compared by the environment, and the optimizers by themselves.
    ignored = ("optimizer", "jit_compile", "run_eagerly")
    described = {key: value for key, value in config.items() if key not in ignored}
    return normalized(json.loads(json.dumps(described, default=str)))  # type: ignore[no-any-return]


def _optimizer(optimizer: Any) -> dict[str, Any]:
    found: dict[str, Any] | None = _described_optimizers.get(optimizer)
    if found is None:
        config = _described(optimizer)
        found = {"class": environment.class_name(optimizer), "config": config and config.get("config")}
        _described_optimizers[optimizer] = found
    return found


def _trial(callbacks: Iterable[Any]) -> str | None:
    """Return the identifier of the KerasTuner trial to which the fit belongs."""
    for callback in callbacks:
        trial_id = getattr(getattr(callback, "trial", None), "trial_id", None)
        if trial_id is not None:
            return str(trial_id)
    return None
