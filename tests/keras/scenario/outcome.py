"""What two runs of a script are compared by."""

from __future__ import annotations

import random
from typing import Any

import keras
import numpy as np


def state_of(model: keras.Model) -> dict[str, Any]:
    """Every variable's bits, random generators included."""
    found = {f"{i}/{v.path}": bits(v) for i, v in enumerate([*model.variables, *model.optimizer.variables])}
    return found | {"numpy": np.random.get_state()[1].tobytes(), "python": str(random.getstate())}


def bits(variable: Any) -> bytes:
    """A variable's bytes."""
    values = np.asarray(keras.ops.convert_to_numpy(variable))
    return str(values.dtype).encode() + values.tobytes()


def plain(history: dict[str, Any]) -> dict[str, list[float]]:
    """A history as floats."""
    return {name: [float(value) for value in values] for name, values in history.items()}


def attributes(callback: Any) -> dict[str, Any]:
    """What a callback keeps."""
    left_out = ("_model", "params", "monitor_op", "schedule")
    kept = {name: value for name, value in vars(callback).items() if name not in left_out}
    if isinstance(kept.get("average"), np.ndarray):
        kept["average"] = kept["average"].tobytes()
    kept.pop("held", None)
    if kept.get("best_weights"):
        kept["best_weights"] = [np.asarray(value).tobytes() for value in kept["best_weights"]]
    return kept
