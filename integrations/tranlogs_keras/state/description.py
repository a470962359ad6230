"""The description of model and environment in a checkpoint, with which weights are exported without the script, or compared."""

from __future__ import annotations

import json
import platform
import re
from functools import partial
from typing import Any, NamedTuple

import keras
import ml_dtypes
import numpy as np

import tranlogs
from tranlogs.base.notes import Note
from tranlogs.training import compare_environments

from .. import keras_internals
from ..backends import Backend
from .variables import Variables, kept_with, without_numbers

_TEXT_MAX = 60
_LAYOUT = "_tranlogs_layout"  # an attribute of the model, which ends with it


def describe_model(variables: Variables) -> dict[str, Any]:
    """Layout of a weights file, architecture and optimizers, as plain values; None for parts that the model cannot describe.

    The optimizers of a loop of one's own are no part of its models, nor of their files.
    """
    model, models = variables.model, variables.models
    names = {id(slot.variable): slot.name for slot in variables.everything_but_metrics}
    if models is None:
        layout = _layout(model, variables.optimizers, names)
    else:
        layout = _layout(models[0], {}, names) if len(models) == 1 else None
    return {
        "layout": layout,
        "models": 0 if models is None else len(models),
        "architecture": _json(model.to_json),
        "constraints": {
            names[id(v)]: _json(partial(serialized, v.constraint))
            for v in model.trainable_variables
            if getattr(v, "constraint", None) is not None and id(v) in names
        },
        "optimizers": {
            which: {
                "class": class_name(optimizer),
                "config": _json(partial(serialized, optimizer)),
                "trains": [names[id(v)] for v in keras_internals.trained_by(optimizer) if id(v) in names],
                "undecayed": [names[id(v)] for v in keras_internals.undecayed(optimizer) if id(v) in names],
            }
            for which, optimizer in variables.optimizers.items()
        },
    }


class Change(NamedTuple):
    """A value that differs from the run's.

    Attributes:
        path: of the value: "model.optimizer.beta_1".
        text: a phrase with both values.
    """

    path: str
    text: str


def compare_models(recorded: dict[str, Any], now: dict[str, Any]) -> list[Change]:
    """Return the differences of the script's model, losses and optimizer settings from those of the run.

    What cannot be serialized is not compared; names, and seeds that Keras draws, differ from process to process.
    """
    pairs = [("the model", recorded["architecture"], now["architecture"])]
    for which, about in now["optimizers"].items():
        pairs.append((f"model.{which}", recorded["optimizers"].get(which, {}).get("config"), about["config"]))
    found: list[Change] = []
    for name, was, is_ in pairs:
        if was is not None and is_ is not None:
            compare_values(name, normalized(json.loads(was)), normalized(json.loads(is_)), found)
    return found


# Names differ from process to process, and so do seeds that Keras draws; an optimizer is compared by itself.
_NOT_COMPARED = {"seed", "shared_object_id", "name", "optimizer", "build_config"}
_TRANSPARENT = {"config", "compile_config"}  # levels of Keras's format that no user has written
_VOLATILE = re.compile(r"0x[0-9a-f]{6,}|_\d+(?=CLONE)")  # addresses, and numbers that keras.models.clone_model copies


def normalized(value: Any) -> Any:
    """Return a serialized object without what differs between two processes that run the same script."""
    if isinstance(value, dict):
        if value.get("class_name") == "__lambda__":  # its code has numbers of lines
            return {"class_name": "__lambda__"}
        return {key: normalized(inner) for key, inner in value.items() if key not in _NOT_COMPARED}
    if isinstance(value, list):
        return [normalized(inner) for inner in value]
    return _VOLATILE.sub("", without_numbers(value)) if isinstance(value, str) else value


def compare_values(path: str, was: Any, now: Any, found: list[Change]) -> None:
    """Append each difference between two normalized values to `found`; `path` names the value."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in [*was, *(key for key in now if key not in was)]:
            compare_values(path if key in _TRANSPARENT else f"{path}.{key}", was.get(key), now.get(key), found)
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for i, (a, b) in enumerate(zip(was, now)):
            compare_values(f"{path}[{i}]", a, b, found)
    elif was != now:
        found.append(Change(path, f"{path} was {_short(was)}, now it is {_short(now)}"))


def _short(value: Any) -> str:
    text = f"{value:.7g}" if isinstance(value, float) else repr(value)  # what came from a float32 has no more digits
    return text if len(text) <= _TEXT_MAX else text[:_TEXT_MAX] + "..."


def _layout(model: Any, optimizers: dict[str, Any], names: dict[int, str]) -> dict[str, Any] | None:
    """Return the variable at each place of a .weights.h5 file; None if a layer writes anything other than variables."""
    parts = [*keras_internals.layers_within(model), *model.variables, *optimizers.values()]
    parts += [variable for optimizer in optimizers.values() for variable in optimizer.variables]
    try:  # looking for it takes longer than a short fit
        found, layers = kept_with(model, _LAYOUT, parts, lambda: keras_internals.weight_layout(model, optimizers))
    except Exception:  # a layer's own save_own_variables
        return None
    if any(id(value) not in names for value in found.values()):
        return None
    return {"places": {place: names[id(value)] for place, value in found.items()}, "layers": layers}


def serialized(thing: Any) -> str:
    """Return a Keras object as JSON. Its numbers keep their types: arithmetic with a float64 of numpy is another one."""
    return json.dumps(_typed(keras.saving.serialize_keras_object(thing)), sort_keys=True)


def _typed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _typed(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_typed(inner) for inner in value]
    if isinstance(value, np.float64):  # which is a float to Keras and to JSON
        return {"class_name": "__numpy__", "config": {"value": float(value), "dtype": "float64"}}
    return value


def deserialized(text: str, classes: dict[str, Any] | None = None) -> Any:
    """Return the object of `serialized`. `classes` are those of the user's own that may be made, by name."""
    return keras.saving.deserialize_keras_object(_untyped(json.loads(text)), custom_objects=classes, safe_mode=True)


def _untyped(value: Any) -> Any:
    """Return a value with its numbers and tensors. Keras makes them itself only where nothing is around them."""
    if isinstance(value, list):
        return [_untyped(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if value.get("class_name") not in ("__numpy__", "__tensor__"):
        return {key: _untyped(inner) for key, inner in value.items()}
    config = value["config"]
    array = np.array(config["value"], np.dtype(config["dtype"]) if config["dtype"] != "bfloat16" else ml_dtypes.bfloat16)
    if value["class_name"] == "__tensor__":
        return keras.ops.convert_to_tensor(array)
    return array if array.ndim else array[()]


def _json(make: Any) -> str | None:
    """Models and optimizers of the user's own may not be serializable; then weights alone can be exported."""
    try:
        return str(make())
    except Exception:
        return None


# What has to be the same, or the function that redoes a step is another one than the one that took it.
_DEMANDED = {
    "backend": "the Keras backend (KERAS_BACKEND)",
    "jit_compile": "jit_compile of model.compile",
    "run_eagerly": "run_eagerly of model.compile",
}

_COMPARED = {
    "keras": "Keras version",
    "tensorflow": "TensorFlow version",
    "torch": "torch version",
    "jax": "JAX version",
    "machine": "processor architecture",
    "cpu_capability": "vector instructions",
    "devices": "device types",
    "threads": "thread count",
    "intra_op_threads": "intra-op threads",
    "inter_op_threads": "inter-op threads",
    "onednn": "TF_ENABLE_ONEDNN_OPTS",
    "xla_flags": "XLA_FLAGS",
    "dtype_policy": "dtype policy",
}


def describe_environment(model: Any, backend: Backend, optimizers: dict[str, Any]) -> dict[str, Any]:
    """Return the environment as plain values."""
    return {
        "tranlogs": tranlogs.__version__,
        "keras": str(keras.__version__),
        "backend": backend.name,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "dtype_policy": str(keras.config.dtype_policy().name),
        **backend.describe(model),
        "optimizers": {name: class_name(optimizer) for name, optimizer in optimizers.items()},
    }


def class_name(thing: Any) -> str:
    """Module and name of an object's class; of Keras's own, the name under which users know it."""
    kind = type(thing)
    module = "keras.optimizers" if kind.__module__.startswith("keras.src.") else kind.__module__
    return f"{module}.{kind.__qualname__}"


def compare_optimizer_classes(recorded: dict[str, Any], optimizers: dict[str, Any]) -> list[str]:
    """Optimizers of other classes than the run's."""
    found = []
    theirs = recorded.get("optimizers", {})
    mine = {name: class_name(optimizer) for name, optimizer in optimizers.items()}
    for name in sorted(theirs.keys() | mine.keys()):
        if theirs.get(name) != mine.get(name):
            found.append(f"model.{name} was {theirs.get(name, 'not there')}, now it is {mine.get(name, 'not there')}")
    return found


def compare_demanded(recorded: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return differences that prevent a redo, one sentence each."""
    return [
        f"{word} was {recorded[key]!r}, now it is {now.get(key)!r}"
        for key, word in _DEMANDED.items()
        if key in recorded and recorded[key] != now.get(key)
    ]


def compare_environment(recorded: dict[str, Any], now: dict[str, Any]) -> list[Note]:
    """Return the differences that can change rounding."""
    return compare_environments(recorded, now, _COMPARED)
