"""Members of a loop of one's own: models, optimizers, and tracked objects."""

from __future__ import annotations

import math
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import keras

from tranlogs.base.errors import UsageError
from tranlogs.base.types import Extension
from tranlogs.training import LoopState, demand_storable

from .. import keras_internals
from ..backends import arrays
from ..state.stateful_values import content_of, set_content
from ..state.variables import Slot, Variables

REMEMBERED = "remember(...)"  # the name under which the loop's namespace is tracked


class Members:
    """The models and optimizers of a run, in the form in which the rest of the integration takes one model.

    Attributes:
        models: that are trained or tracked.
        optimizers: by name.
        trains: the models that each optimizer trains, by name of the optimizer.
        tracked: objects with a state of their own, by name.
    """

    jit_compile = run_eagerly = False

    def __init__(self) -> None:
        self.models: list[Any] = []
        self.optimizers: dict[str, Any] = {}
        self.trains: dict[str, list[Any]] = {}
        self.tracked: dict[str, Any] = {}
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

    def remember(self, state: LoopState) -> None:
        """Add the namespace of the loop."""
        self.tracked[REMEMBERED] = self._names[REMEMBERED] = state

    def build(self) -> None:
        """Build the optimizers on the variables of their models.

        Raises:
            UsageError: a model has no variables yet.
        """
        for name, optimizer in self.optimizers.items():
            models = self.trains[name]
            unbuilt = next((model for model in models if not keras_internals.is_built(model)), None)
            variables = _unique(v for model in models for v in model.trainable_variables)
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
        return _unique(v for model in self.models for v in model.variables)

    @property
    def trainable_variables(self) -> list[Any]:
        """Trainable variables of all models."""
        return _unique(v for model in self.models for v in model.trainable_variables)

    @property
    def metrics_variables(self) -> list[Any]:
        """Variables that a boundary holds: those of metrics, and tracked ones."""
        metrics = (v for model in self.models for v in getattr(model, "metrics_variables", ()))
        return _unique([*metrics, *self._variables.values()])

    def _flatten_layers(self, include_self: bool = True) -> Iterable[Any]:
        return _unique(layer for model in self.models for layer in model._flatten_layers(include_self=include_self))

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

    def _find_optimizers(self) -> dict[str, Any]:
        return dict(self.model.optimizers)

    def _find_trained(self) -> list[Any]:
        return _unique(v for optimizer in self.optimizers.values() for v in keras_internals.trained_by(optimizer))

    def trained_of(self, which: str) -> list[Slot]:
        slots = {id(slot.variable): slot for slot in self.trained}
        return [slots[id(v)] for v in keras_internals.trained_by(self.optimizers[which])]


def _state_of(thing: Any) -> Any:
    """Return the state of a tracked object: what it holds if it is a random generator, else its `state_dict()`."""
    content = content_of(thing)
    return thing.state_dict() if content is None else content


def _unique(items: Iterable[Any]) -> list[Any]:
    return list({id(item): item for item in items}.values())
