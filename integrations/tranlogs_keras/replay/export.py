"""Write a replayed state to a file that Keras loads.

FILE.weights.h5  what `model.load_weights` of the same model reads, optimizer included
FILE.keras       architecture and weights, for `keras.models.load_model`; only for models of Keras's own layers
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import keras

from tranlogs.base.atomic_files import publishing
from tranlogs.base.errors import UsageError

from .. import keras_internals
from ..export_targets import check_target
from .recorded_state import RecordedState, only_keras


def write(path: Path, state: RecordedState) -> list[str]:
    """Write the file, all of it or nothing; returns what it does not hold, one sentence each."""
    check_target(path)
    if path.name.endswith(".weights.h5"):
        with publishing(path) as temporary:
            _write_weights(Path(temporary), path, state)
        return ["the optimizer is not in the file: the run is of a loop of one's own"] if state.meta.get("models") else []
    with publishing(path) as temporary:
        is_compiled = _write_model(Path(temporary), path, state)
    notes = ["the counters of Dropout and other random layers are not in the file: Keras keeps none"]
    return notes if is_compiled else ["the optimizer is not in the file: compile the model to train on", *notes]


def _write_weights(target: Path, path: Path, state: RecordedState) -> None:
    layout, models = state.meta["layout"], state.meta.get("models", 0)
    if layout is None and models > 1:
        raise UsageError(
            f"{path}: the run trains {models} models in a loop of one's own, and such a file holds one. Run the script: "
            "LoggedOptimizer brings the models back"
        )
    if layout is None:
        raise UsageError(
            f"{path}: a layer of the model writes its weights in a way of its own (save_own_variables), which the run "
            "does not know. Run the script, which brings the model itself back"
        )
    slots = state.variables.by_name
    groups: dict[str, dict[str, Any]] = {}
    for place, name in layout["places"].items():
        group, _, key = place.rpartition("/")
        groups.setdefault(group.removesuffix("vars").rstrip("/"), {})[key] = state.backend.value_of(slots[name].variable)
    keras_internals.write_weights(target, groups, layout["layers"])


def _write_model(target: Path, path: Path, state: RecordedState) -> bool:
    """Write a model file; return True if optimizer, losses and metrics are in it, too."""
    architecture = state.meta["architecture"]
    if architecture is None:
        raise UsageError(
            f"{path}: the run does not hold the model's architecture (a subclassed model without get_config). Use .weights.h5"
        )
    foreign = only_keras(json.loads(architecture))
    if foreign:
        raise UsageError(
            f"{path}: the model has parts that are not Keras's own ({', '.join(sorted(foreign))}), and a run executes "
            "no code that it names. Use .weights.h5"
        )
    with tempfile.TemporaryDirectory() as folder:
        model = keras.models.model_from_json(architecture)
        weights = Path(folder, "state.weights.h5")
        _write_weights(weights, path, state)
        model.load_weights(weights)
        whole = Path(folder, "model.keras")
        model.save(whole)
        target.write_bytes(whole.read_bytes())
        return bool(model.compiled and model.optimizer.built)
