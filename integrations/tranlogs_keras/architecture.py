"""What a checkpoint tells of the model besides its variables, so that weights can be exported without the script."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import keras

from . import environment, private
from .variables import Variables


def describe_model(model: Any, variables: Variables) -> dict[str, Any]:
    """Layout of a weights file, architecture and optimizers, as plain values. What a model cannot tell is None."""
    names = {id(slot.variable): slot.name for slot in variables.everything_but_metrics}
    return {
        "layout": _layout(model, variables.optimizers, names),
        "architecture": _json(model.to_json),
        "optimizers": {
            which: {
                "class": environment.class_name(optimizer),
                "config": _json(partial(_serialized, optimizer)),
                "trains": [names[id(v)] for v in private.trained_by(optimizer) if id(v) in names],
            }
            for which, optimizer in variables.optimizers.items()
        },
    }


def _layout(model: Any, optimizers: dict[str, Any], names: dict[int, str]) -> dict[str, Any] | None:
    """The variable at each place of a .weights.h5 file; None where a layer writes something else than variables."""
    try:
        found, layers = private.weight_layout(model, optimizers)
    except Exception:  # a layer's own save_own_variables
        return None
    if any(id(value) not in names for value in found.values()):
        return None
    return {"places": {place: names[id(value)] for place, value in found.items()}, "layers": layers}


def _serialized(optimizer: Any) -> str:
    return json.dumps(keras.saving.serialize_keras_object(optimizer))


def _json(make: Any) -> str | None:
    """Models and optimizers of the user's own may not be serializable; then weights alone can be exported."""
    try:
        return str(make())
    except Exception:
        return None
