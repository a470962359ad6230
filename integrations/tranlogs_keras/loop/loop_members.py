"""Members of a loop of one's own: models, optimizers, tracked objects, and what the script changes of them before its loop."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import keras

from tranlogs.base.errors import UsageError
from tranlogs.base.notes import Note
from tranlogs.base.types import Extension
from tranlogs.records import tree
from tranlogs.training import Framework, LoopState, Remembered, demand_storable

from .. import keras_internals
from ..backends import arrays
from ..backends.arrays import Values
from ..run.run_parts import RunParts
from ..state.attributes import content_of, set_content
from ..state.script_values import LoopValues, read_array, version_of
from ..state.variables import Slot, Variables, unique

REMEMBERED = "remember(...)"  # the name under which the loop's namespace is tracked


class Members:
    """The models and optimizers of a run, in the form in which the rest of the integration takes one model.

    Attributes:
        models: that are trained or tracked.
        optimizers: by name.
        trains: the models that each optimizer trains, by name of the optimizer.
        tracked: objects with a state of their own, by name.
        loop_state: the namespace of the loop; None if the script remembers nothing.
        times: names of remembered attributes that are times which the script measures.
    """

    jit_compile = run_eagerly = False

    def __init__(self) -> None:
        self.models: list[Any] = []
        self.optimizers: dict[str, Any] = {}
        self.trains: dict[str, list[Any]] = {}
        self.tracked: dict[str, Any] = {}
        self.loop_state: LoopState | None = None
        self.times: list[str] = []
        self._variables: dict[str, Any] = {}  # tracked Keras variables
        self._names: dict[str, Any] = {}  # everything that `track` was given

    def add_optimizer(self, name: str, optimizer: Any, models: list[Any]) -> None:
        """Add an optimizer and the models that it trains."""
        if name in self.optimizers:
            raise UsageError(f"the run has an optimizer {name!r} already; give another name")
        self.optimizers[name], self.trains[name] = optimizer, models
        self.models += [model for model in models if all(model is not known for known in self.models)]

    def track(self, name: str, thing: Any) -> None:
        """Add something that the loop writes.

        Raises:
            UsageError: it has no state, or another object is tracked under this name.
            UnencodableState: its state holds something that cannot be stored; the message has its path.
        """
        if self._names.get(name, thing) is not thing:
            raise UsageError(f"track({name}=...): another object is tracked under this name already")
        if isinstance(thing, keras.Layer):
            self.models += [thing] if all(thing is not known for known in self.models) else []
        elif isinstance(thing, (keras.metrics.Metric, keras.random.SeedGenerator)):
            found = thing.variables if isinstance(thing, keras.metrics.Metric) else [thing.state]
            self._variables |= {f"{name}.{i}": variable for i, variable in enumerate(found)}
        elif isinstance(thing, keras.Variable):
            self._variables[name] = thing
        elif content_of(thing) is not None or (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            model_bytes = sum(math.prod(v.shape) * 4 for v in self.variables)
            demand_storable(_state_of(thing), f"track[{name!r}]", arrays.adapt, model_bytes)
            self.tracked[name] = thing
        else:
            raise UsageError(
                f"track({name}=...): a {type(thing).__name__} has no state that can be stored. Track Keras metrics, variables, "
                "seed generators, models, random generators of numpy and Python, or objects with state_dict and load_state_dict"
            )
        self._names[name] = thing

    def remember(self, values: dict[str, Any], doubt: Callable[[Note], None]) -> Remembered:
        """Remember attributes of the loop's namespace; `doubt` is called with what does not come back."""
        state = self.loop_state or LoopState(LoopValues(), doubt)
        state.add(values)
        self.loop_state = self.tracked[REMEMBERED] = self._names[REMEMBERED] = state
        return state.namespace

    def build(self) -> None:
        """Build the optimizers on the variables of their models.

        Raises:
            UsageError: a model has no variables yet.
        """
        for name, optimizer in self.optimizers.items():
            models = self.trains[name]
            unbuilt = next((model for model in models if not keras_internals.is_built(model)), None)
            variables = unique(v for model in models for v in model.trainable_variables)
            if unbuilt is not None or not variables:
                kind = type(unbuilt if unbuilt is not None else models[0]).__name__
                raise UsageError(
                    f"optimizer {name!r}: the variables of its model, a {kind}, are not made yet. Call the model once on a "
                    "batch before the loop"
                )
            if not optimizer.built:
                with keras.name_scope(optimizer.name, caller=optimizer):
                    optimizer.build(variables)
                optimizer.built = True

    # A model for the rest of the integration.

    @property
    def optimizer(self) -> Any:
        """The first optimizer."""
        return next(iter(self.optimizers.values()))

    @property
    def variables(self) -> list[Any]:
        """Variables of all models."""
        return unique(v for model in self.models for v in model.variables)

    @property
    def trainable_variables(self) -> list[Any]:
        """Trainable variables of all models."""
        return unique(v for model in self.models for v in model.trainable_variables)

    @property
    def metrics_variables(self) -> list[Any]:
        """Variables that a boundary holds: those of metrics, and tracked ones."""
        metrics = (v for model in self.models for v in getattr(model, "metrics_variables", ()))
        return unique([*metrics, *self._variables.values()])

    def _flatten_layers(self, include_self: bool = True) -> Iterable[Any]:
        return unique(layer for model in self.models for layer in model._flatten_layers(include_self=include_self))

    def to_json(self) -> str:
        """Architecture of the model, if there is one only."""
        if len(self.models) != 1:
            raise ValueError("several models have no common architecture")
        return str(self.models[0].to_json())

    # Tracked objects.

    def read_tracked(self) -> dict[str, Any]:
        """Return the states of tracked objects, encodable."""
        return {name: _state_of(thing) for name, thing in self.tracked.items()}

    def read_remembered(self) -> dict[str, Any] | None:
        """Return the state of the loop's namespace; None if there is none."""
        found: dict[str, Any] | None = self.tracked[REMEMBERED].state_dict() if REMEMBERED in self.tracked else None
        return found

    def write_remembered(self, states: dict[str, Any]) -> None:
        """Set the namespace of the loop, if there is one, to a recorded state."""
        if REMEMBERED in states and REMEMBERED in self.tracked:
            self.tracked[REMEMBERED].load_state_dict(states[REMEMBERED])

    def write_tracked(self, states: dict[str, Any]) -> list[str]:
        """Set the tracked objects to recorded states.

        Returns:
            The names of those that are tracked in the record alone, here alone, or as something of another kind.
        """
        lost = sorted(states.keys() ^ self.tracked.keys())
        for name in states.keys() & self.tracked.keys():
            thing, state = self.tracked[name], states[name]
            if isinstance(state, Extension):
                if not set_content(SimpleNamespace(value=thing), "value", state):
                    lost.append(name)
            elif content_of(thing) is not None:
                lost.append(name)
            else:
                thing.load_state_dict(state)
        return lost


class LoopVariables(Variables):
    """The variables of a loop of one's own; see `Variables`."""

    model: Members

    @property
    def models(self) -> list[Any]:  # type: ignore[override]
        return self.model.models

    def _find_optimizers(self) -> dict[str, Any]:
        return dict(self.model.optimizers)

    def _find_trained(self) -> list[Any]:
        return unique(v for optimizer in self.optimizers.values() for v in keras_internals.trained_by(optimizer))

    def trained_of(self, which: str) -> list[Slot]:
        slots = {id(slot.variable): slot for slot in self.trained}
        return [slots[id(v)] for v in keras_internals.trained_by(self.optimizers[which])]


def _state_of(thing: Any) -> Any:
    """Return the state of a tracked object: what it holds if it is a random generator, else its `state_dict()`."""
    content = content_of(thing)
    return thing.state_dict() if content is None else content


class ScriptChanges:
    """The variables of models and optimizers, and the remembered attributes, that the script has set. Values are copied.

    What code before the batches of an epoch writes when it runs again is undone, and these values are set again.

    `written` are the variables with other values than recovery has restored, and `recorded` the states of tracked objects
    where it has landed. Times that the script measures are left out.
    """

    def __init__(self, parts: RunParts, members: Members, written: Mapping[str, Values], recorded: Mapping[str, Any]) -> None:
        self._parts, self._members, self._written = parts, members, written
        self._remembered, self._objects = dict[str, Any](), None
        now, was = members.read_remembered(), recorded.get(REMEMBERED)
        if now is not None and was is not None:
            added = {*members.times, *members.tracked[REMEMBERED].names_apart(was)[0]}
            for name, value in now["values"].items():
                if name not in added and (name not in was["values"] or _encode(value) != _encode(was["values"][name])):
                    self._remembered[name] = copy.deepcopy(value)
            if _encode(now["objects"]) != _encode(was["objects"]):
                self._objects = copy.deepcopy(now["objects"])

    @property
    def texts(self) -> list[str]:
        """The changes, in words."""
        found = [*self._written, *(f"state.{name}" for name in self._remembered)]
        return found + (["an object in remember(...)"] if self._objects is not None else [])

    def apply(self) -> None:
        """Set the changes again."""
        by_name = self._parts.variables.by_name
        for name, value in self._written.items():
            self._parts.backend.assign(by_name[name].variable, value)
        state = self._members.read_remembered()
        if state is not None:
            objects = state["objects"] if self._objects is None else self._objects
            state = {**state, "values": state["values"] | self._remembered, "objects": objects}
            self._members.write_remembered({REMEMBERED: state})


def _encode(value: Any) -> bytes:
    return tree.encode(value, adapt=arrays.adapt)


def make_framework(members: Members) -> Framework:
    """Return what Keras knows of the values of a script with a loop of its own."""

    def kept() -> Iterator[Any]:
        yield from members.optimizers.values()
        for state in members.tracked.values():
            if isinstance(state, LoopState):
                yield from state.objects

    def tracked() -> Iterator[tuple[Any, Any]]:
        for thing in members.tracked.values():
            if not isinstance(thing, LoopState) and hasattr(thing, "state_dict"):
                yield thing, thing.state_dict

    def remembered() -> Mapping[str, Any]:
        states = [state for state in members.tracked.values() if isinstance(state, LoopState)]
        return {name: value for state in states for name, value in vars(state.namespace).items()}

    return Framework(read_array, kept, tracked, remembered, read_version=version_of(lambda: members.variables))
