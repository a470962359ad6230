"""Keras on JAX: the state lives in a tuple that `fit` passes from step to step, and in the variables only in between."""

from __future__ import annotations

import os
from collections.abc import Sequence
from operator import is_
from typing import Any

import jax
import keras
import numpy as np

from tranlogs.base.types import AnyArray

from .arrays import Values, from_array
from .backend import Backend, HostViews
from .tap import Gradients, StepWatcher, Tap, check_one_update


class JaxBackend(Backend):
    """The JAX backend of Keras."""

    name = "jax"
    needs_a_step = True  # its fit reports the logs of the last step, and fails where none was taken
    is_asynchronous = True
    sees_inner_writes = False  # all arrays are others after each train step
    _tapped: JaxTap | None

    def __init__(self) -> None:
        super().__init__()
        self._apply: Any = None
        self._held: list[Any] = []

    def take_back(self, model: Any) -> None:
        if hasattr(model, "jax_state_sync"):
            model.jax_state_sync()

    def values_of(self, variables: Sequence[Any]) -> Sequence[Values]:
        return HostViews(self._current(variables), np.asarray)

    def _current(self, variables: Sequence[Any]) -> list[Any]:
        """Arrays of variables: of the tuple while `fit` has taken them from the model, which then holds none."""
        state = self._tapped.state if self._tapped is not None else None
        if state is None:
            return [v.value for v in variables]
        return [state.read(v) for v in variables]

    def assign(self, variable: Any, values: Values) -> None:
        state = self._tapped.state if self._tapped is not None else None
        if state is None or not state.write(variable, values):
            variable.assign(values)

    def remember(self, variables: Sequence[Any], values: Sequence[Values] | None = None) -> None:
        self._held = self._current(variables)

    def forget(self) -> None:
        self._held = []

    def changed(self, variables: Sequence[Any], values: Sequence[Values] | None = None) -> list[int]:
        now = self._current(variables)
        if len(now) != len(self._held):
            return list(range(len(now)))
        return [i for i, (a, b) in enumerate(zip(self._held, now)) if a is not b and not _is_same(a, b)]

    def prepare_apply(self, model: Any) -> None:
        if self._model is model:
            return
        super().prepare_apply(model)
        optimizer = model.optimizer
        apply = type(optimizer).stateless_apply

        def update(owned: Any, gradients: Any, trained: Any) -> Any:
            return apply(optimizer, owned, gradients, trained)

        whole = bool(model.run_eagerly) or not model.jit_compile
        self._apply = update if whole else jax.jit(update, donate_argnums=(0, 2))

    def make_tap(self, model: Any, splits: bool) -> JaxTap:
        return JaxTap(model, splits)

    def pass_over(self) -> None:
        assert self._tapped is not None
        self._tapped.passes = True

    def apply(self, gradients: Gradients, reading: Sequence[Any] = ()) -> Sequence[Values]:
        optimizer, model = self._model.optimizer, self._model
        tapped = self._tapped
        if tapped is not None and tapped.state is not None:  # within a step
            trained, _, owned, _ = tapped.state.parts
            tapped.state.update(*self._apply(owned, list(gradients), trained))
            tapped.prepare_batch()  # while the devices compute
        else:
            trained, owned = self._apply(
                [v.value for v in optimizer.variables], list(gradients), [v.value for v in model.trainable_variables]
            )
            for variable, value in zip([*model.trainable_variables, *optimizer.variables], [*trained, *owned], strict=True):
                variable.assign(value)
        return self.values_of(reading)

    def host_of(self, tensors: Sequence[Any]) -> list[Values]:
        return [np.asarray(tensor) for tensor in tensors]

    def to_device(self, array: AnyArray, form: tuple[str, str] | None) -> Any:
        return jax.numpy.asarray(from_array(array))

    def describe(self, model: Any) -> dict[str, Any]:
        return {
            "jax": str(jax.__version__),
            "devices": [jax.default_backend()],
            "jit_compile": bool(model.jit_compile),
            "run_eagerly": bool(model.run_eagerly),
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
        }


class State:
    """The arrays that `fit` passes from step to step: trained variables, others of the model, the optimizer's, the metrics'."""

    def __init__(self, parts: Any, places: dict[int, tuple[int, int]]) -> None:
        self.parts = tuple(map(list, parts))
        self._places = places  # of variables, by id: the part, and the index in it

    def update(self, trained: Any, owned: Any) -> None:
        """Take the results of an update."""
        _, others, _, metrics = self.parts
        self.parts = list(trained), others, list(owned), metrics

    def read(self, variable: Any) -> Any:
        """Return a variable's value here; a variable outside of the model (Keras's global seed) has its own."""
        place = self._places.get(id(variable))
        return variable.value if place is None else self.parts[place[0]][place[1]]

    def write(self, variable: Any, values: Values) -> bool:
        """Set a variable's value; False if it is not of the model."""
        place = self._places.get(id(variable))
        if place is not None:
            self.parts[place[0]][place[1]] = jax.numpy.asarray(values)
        return place is not None


class JaxTap(Tap):
    """Keras's train step with the gradients among its outputs.

    Attributes:
        state: what the last step left, until the model has its values back.
        passes: the next call takes no step.
    """

    def __init__(self, model: Any, splits: bool) -> None:
        self._stash: list[list[Any]] | None = None  # while a train step is being traced
        self._state: State | None = None
        self._sizes: tuple[int, ...] = ()  # of the parts, when the places of variables were found
        self._places: dict[int, tuple[int, int]] = {}
        self._batches: Any = None
        self.passes = False
        super().__init__(model, splits)
        is_compiled = model.jit_compile and not model.run_eagerly and keras.distribution.distribution() is None
        self._half = jax.jit(self._first_half, donate_argnums=1) if splits and is_compiled else None

    def attach(self, watcher: StepWatcher) -> None:
        self._state, self._sizes = None, ()
        self.passes = False
        super().attach(watcher)

    def release(self) -> None:
        self._state = self._batches = None
        super().release()

    def _put_between(self) -> None:
        self._replace(self._optimizer, "stateless_apply", self._take)
        self._replace(self._model, "train_step", self._train_step)

    @property
    def state(self) -> State | None:
        return None if getattr(self._model, "_jax_state_synced", True) else self._state

    def _state_of(self, parts: Any) -> State:
        sizes, model = tuple(map(len, parts)), self._model
        if sizes != self._sizes:
            owners = (
                model.trainable_variables,
                model.non_trainable_variables,
                model.optimizer.variables,
                model.metrics_variables,
            )
            self._sizes = sizes
            self._places = {id(v): (part, i) for part, held in enumerate(owners) for i, v in enumerate(held)}
        self._state = State(parts, self._places)
        return self._state

    def _take(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        if self._stash is None:
            return type(self._optimizer).stateless_apply(self._optimizer, optimizer_variables, grads, trainable_variables)
        self._stash.append(list(grads))
        return trainable_variables, optimizer_variables

    def _train_step(self, state: Any, data: Any) -> Any:
        self._stash = []
        try:
            logs, state = type(self._model).train_step(self._model, state, data)
            found = self._stash
        finally:
            self._stash = None
        check_one_update(len(found))
        return {"logs": logs, "gradients": found[0]}, state

    def _first_half(self, updated: Any, others: Any, data: Any) -> Any:
        """Compute a step up to its gradients, without state that only the update changes: XLA would copy all of it."""
        found, state = self._train_step((updated[0], others[0], updated[1], others[1]), data)
        given, left = [*updated[0], *updated[1]], [*state[0], *state[2]]
        is_passed_on = len(given) == len(left) and all(map(is_, given, left))
        return found, None if is_passed_on else (state[0], state[2]), (state[1], state[3])

    def prepare_batch(self) -> None:
        """Make the next batch ahead of time, if the data can."""
        if hasattr(self._batches, "prepare"):
            self._batches.prepare()

    def _take_half(self, state: State, iterator: Any) -> tuple[Any, State]:
        if self._half is None:
            found, parts = self._one(state.parts, iterator)
            return found, self._state_of(parts)
        trained, others, owned, metrics = state.parts
        found, updated, (others, metrics) = self._half((trained, owned), (others, metrics), next(iterator))
        trained, owned = (trained, owned) if updated is None else updated
        return found, self._state_of((trained, others, owned, metrics))

    def _steps(self, parts: Any, iterator: Any) -> Any:
        if self.passes:
            self.passes = False
            return {}, parts
        logs, self._batches = None, iterator
        for _ in range(self._model.steps_per_execution):
            state = self._state_of(parts)
            self._watcher.begin_step()
            try:
                found, state = self._take_half(state, iterator)
            except StopIteration:
                self._watcher.drop_step()
                if logs is None:
                    raise
                break
            if self._splits:
                self._watcher.take_gradients(found["gradients"])
                logs = found["logs"]
            else:
                self.prepare_batch()
                self._watcher.end_step()
                logs = found
            parts = state.parts
        return logs, parts


def _is_same(a: Any, b: Any) -> bool:
    """Return True if two arrays have the same bits. An array whose memory was given to a later step is another one."""
    if a.is_deleted() or b.is_deleted():
        return False
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()
