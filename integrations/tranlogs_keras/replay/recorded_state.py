"""The state that a checkpoint describes, whatever it is, and the files that Keras loads it from.

FILE.weights.h5  what `model.load_weights` of the same model reads, optimizer included
FILE.keras       architecture and weights, for `keras.models.load_model`; only for models of Keras's own layers
"""

from __future__ import annotations

import importlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras

from tranlogs.base.atomic_files import publishing
from tranlogs.base.errors import UsageError
from tranlogs.base.notes import Note
from tranlogs.records import Checkpoint

from .. import keras_internals
from ..backends import Backend, Gradients, make_backend
from ..backends.arrays import Values, from_array
from ..backends.tap import Updates
from ..state.description import compare_environment, describe_environment, deserialized
from ..state.state import KerasState
from ..state.variables import Slot, Variables


class RecordedVariables(Variables):
    """Variables under their recorded names; see `Variables`."""

    def __init__(self, meta: dict[str, Any], backend: Backend, optimizers: dict[str, Any]) -> None:
        self.backend, self.is_whole, self.optimizers = backend, meta["log"] == "weights", optimizers
        made = {
            name: _variable(name, dtype, shape) for name, dtype, shape in meta["variables"] if not name.startswith("optimizer/")
        }
        slots = {name: Slot(name, made[name], dtype, tuple(shape)) for name, dtype, shape in meta["variables"] if name in made}
        self.trained = [slots[name] for name in meta["trained"]]
        self.others = [slot for name, slot in slots.items() if name.startswith("param/") and name not in set(meta["trained"])]
        self.metrics = [slot for name, slot in slots.items() if name.startswith("metric/")]
        self.auxiliary: list[Slot] = []
        self.owned: list[Slot] = []
        self._trained_of = {
            which: [slots[name] for name in about["trains"] if name in slots] for which, about in meta["optimizers"].items()
        }

    def trained_of(self, which: str) -> list[Slot]:
        found = self._trained_of.get(which, []) if len(self._trained_of) > 1 else []
        return found or self.trained

    def own(self, meta: dict[str, Any]) -> None:
        """Name the variables of the optimizers, which are built."""
        recorded = [item for item in meta["variables"] if item[0].startswith("optimizer/")]
        for which, optimizer in self.optimizers.items():
            mine = [item for item in recorded if item[0].startswith(f"optimizer/{which}/")]
            variables = optimizer.variables or [_variable(*item) for item in mine]
            if len(variables) != len(mine):
                raise UsageError(
                    f"optimizer {which!r} has {len(variables)} variables when it is built here, and had {len(mine)} in "
                    "the run: another version of Keras, or of its class"
                )
            self.owned += [Slot(name, v, dtype, tuple(shape)) for (name, dtype, shape), v in zip(mine, variables)]

    def rename(self, recorded: dict[str, str]) -> None:
        """Do nothing: the variables have these names."""

    def has_grown(self) -> bool:
        return False


class RecordedState(KerasState):
    """Variables and optimizers as a checkpoint describes them, for redo without the training script.

    `optimizers` are classes of the user's own, of optimizers and learning-rate schedules, as "module:Class".
    """

    def __init__(self, optimizers: Sequence[str]) -> None:
        self._classes = {kind.__name__: kind for kind in map(_imported, optimizers)}
        self.meta: dict[str, Any] = {}
        self._model: Any = None
        self._updates: dict[str, Updates] = {}
        super().__init__(Variables.__new__(Variables), make_backend(), "gradients", "auto")

    def differences(self, checkpoint: Checkpoint) -> list[str]:
        return []  # nothing is built before the checkpoint is read

    def restore(self, checkpoint: Checkpoint) -> None:
        meta = self.meta = checkpoint.meta(make_array=from_array)
        recorded = checkpoint.manifest["environment"]
        self.log = meta["log"]
        optimizers = {which: self._optimizer(which, about) for which, about in meta["optimizers"].items()}
        variables = RecordedVariables(meta, self.backend, optimizers)
        by_name = variables.by_name
        for which, about in meta["optimizers"].items():
            if isinstance(optimizers[which], keras_internals.BaseOptimizer):
                optimizers[which].build([by_name[name].variable for name in about["trains"]])
                left_out = [by_name[name].variable for name in about.get("undecayed", ())]
                keras_internals.leave_undecayed(optimizers[which], left_out)
        variables.own(meta)
        if self.log == "gradients":
            _constrain(by_name, meta.get("constraints", {}))
        self.variables = variables
        self._model = SimpleNamespace(
            optimizer=variables.optimizers.get("optimizer"),
            jit_compile=recorded["jit_compile"],
            run_eagerly=recorded.get("run_eagerly", False),
            variables=[slot.variable for slot in variables.everything_but_metrics],
            trainable_variables=[slot.variable for slot in variables.trained],
        )
        self._updates.clear()
        self.backend.prepare_apply(self._model)
        super().restore(checkpoint)

    def apply(self, body: dict[str, Any], gradients: Gradients, reading: Sequence[Any]) -> Sequence[Values]:
        which = body.get("optimizer", "optimizer")
        if "eager" not in body and which == "optimizer":
            return super().apply(body, gradients, reading)
        if which not in self._updates:
            self._updates[which] = self.backend.updates_of(self.variables.optimizers[which])
        updates = self._updates[which]
        updates.is_eager = body.get("eager", False)
        return updates.apply(gradients, reading)

    def compare_environment(self) -> list[Note]:
        """Return the differences between the recorded environment and this process's."""
        return compare_environment(self.recorded_environment, describe_environment(self._model, self.backend, {}))

    def _optimizer(self, which: str, about: dict[str, Any]) -> Any:
        """Return the optimizer, or a holder of its variables if after-images contain everything."""
        if self.log == "weights" and which != "optimizer":
            return SimpleNamespace(variables=[])
        if about["config"] is None or not about["trains"]:
            if self.log == "weights":
                return SimpleNamespace(variables=[])
            raise UsageError(f"optimizer {which!r} ({about['class']}) could not be recorded: it has no get_config()")
        foreign = {
            name: module for name, module in foreign_parts(json.loads(about["config"])).items() if name not in self._classes
        }
        if foreign and self.log == "weights":
            return SimpleNamespace(variables=[])
        for name, module in foreign.items():
            if module is None:
                raise UsageError(
                    f"optimizer {which!r} ({about['class']}) has a function of the script among its settings, and a run "
                    "executes no code that it names: its steps cannot be redone without the script"
                )
            raise UsageError(
                f"optimizer {which!r} has a {module}.{name}, which Keras does not have. Name its class if you trust it: "
                f"--optimizer {module}:{name}"
            )
        return deserialized(about["config"], self._classes)


_FUNCTIONS = ("__lambda__", "function")  # what Keras calls the classes of functions


def _constrain(slots: dict[str, Slot], constraints: dict[str, str | None]) -> None:
    """Apply the constraint of each variable, which ends an update."""
    for name, text in constraints.items():
        config = None if text is None else json.loads(text)
        if text is None or foreign_parts(config) or not isinstance(config, dict):
            raise UsageError(
                f"{name} has a constraint that is not Keras's own, and a run executes no code that it names: its "
                "steps cannot be redone without the script"
            )
        slots[name].variable.constraint = deserialized(text)


def foreign_parts(config: Any) -> dict[str, str | None]:
    """Return the names of classes in a configuration that are not Keras's own, with their modules; None for a function.

    Only Keras's own are created from a run.
    """
    found: dict[str, str | None] = {}
    if isinstance(config, dict):
        name = config.get("class_name")
        module = config.get("module")
        if isinstance(name, str) and "config" in config:
            own = module is None or module == "builtins" or module == "keras" or str(module).startswith("keras.")
            is_plain = own and config.get("registered_name") in (None, name) and name not in _FUNCTIONS
            if not is_plain:
                found[name] = None if name in _FUNCTIONS else str(module)
        for value in config.values():
            found |= foreign_parts(value)
    elif isinstance(config, list):
        for item in config:
            found |= foreign_parts(item)
    return found


def _variable(name: str, dtype: str, shape: Sequence[int]) -> Any:
    plain = name.rpartition("/")[2].replace("#", "_").replace("@", "_")
    return keras.Variable(initializer="zeros", shape=tuple(shape), dtype=dtype, trainable=False, name=plain)


def _imported(spec: str) -> Any:
    module, colon, name = spec.rpartition("=")[2].partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"--optimizer {spec}: it cannot be imported ({error})") from None
    kinds = keras_internals.BaseOptimizer, keras.optimizers.schedules.LearningRateSchedule
    if not colon or not (isinstance(found, type) and issubclass(found, kinds)):
        raise UsageError(f"--optimizer {spec}: it is no optimizer or learning-rate schedule of Keras; give it as module:Class")
    return found


def write(path: Path, state: RecordedState) -> list[str]:
    """Write the file, all of it or nothing; returns what it does not hold, one sentence each."""
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
    foreign = foreign_parts(json.loads(architecture))
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
