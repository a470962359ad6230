"""The environment on which the rounding of a run depends: recorded, and compared when the run continues."""

from __future__ import annotations

import platform
from typing import Any

import keras

import tranlogs
from tranlogs.training import compare_environments

from ..backends import Backend

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


def describe(model: Any, backend: Backend, optimizers: dict[str, Any]) -> dict[str, Any]:
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


def differences(recorded: dict[str, Any], optimizers: dict[str, Any]) -> list[str]:
    """Optimizers of other classes than the run's."""
    found = []
    theirs = recorded.get("optimizers", {})
    mine = {name: class_name(optimizer) for name, optimizer in optimizers.items()}
    for name in sorted(theirs.keys() | mine.keys()):
        if theirs.get(name) != mine.get(name):
            found.append(f"model.{name} was {theirs.get(name, 'not there')}, now it is {mine.get(name, 'not there')}")
    return found


def demanded(recorded: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return differences that prevent a redo, one sentence each."""
    return [
        f"{word} was {recorded[key]!r}, now it is {now.get(key)!r}"
        for key, word in _DEMANDED.items()
        if key in recorded and recorded[key] != now.get(key)
    ]


def compare(recorded: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the differences that can change rounding, one sentence each."""
    return compare_environments(recorded, now, _COMPARED)
