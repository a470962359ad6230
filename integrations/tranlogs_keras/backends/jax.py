"""Keras on JAX: the state lives in a tuple that `fit` passes from step to step, and in the variables only in between."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tranlogs.types import AnyArray

from ..adapt import Values, from_array, to_array
from .base import Backend, Gradients, Tap, Watcher, check_one_update


class JaxBackend(Backend):
    """See `Backend`."""

    name = "jax"
    needs_a_step = True  # its fit reports the logs of the last step, and fails where none was taken
    sees_inner_writes = False  # all arrays are others after each train step
    _tapped: JaxTap | None

    def __init__(self) -> None:
        super().__init__()
        self._apply: Any = None
        self._held: list[Any] = []

    def values_of(self, variables: Sequence[Any]) -> list[Values]:
        return [np.asarray(value) for value in self._current(variables)]

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
        super().prepare_apply(model)
        optimizer = model.optimizer
        apply = type(optimizer).stateless_apply

        def update(owned: Any, gradients: Any, trained: Any) -> Any:
            return apply(optimizer, owned, gradients, trained)

        whole = bool(model.run_eagerly) or not model.jit_compile
        self._apply = update if whole else jax.jit(update, donate_argnums=(0, 2))

    def make_tap(self, model: Any, watcher: Watcher, splits: bool) -> JaxTap:
        return JaxTap(model, watcher, splits)

    def pass_over(self) -> None:
        assert self._tapped is not None
        self._tapped.passes = True

    def apply(self, gradients: Gradients, reading: Sequence[Any] = ()) -> list[Values]:
        optimizer, model = self._model.optimizer, self._model
        tapped = self._tapped
        if tapped is not None and tapped.state is not None:  # within a step
            trained, others, owned, metrics = tapped.state.parts
            trained, owned = self._apply(owned, list(gradients), trained)
            tapped.state = State(model, (trained, others, owned, metrics))
        else:
            trained, owned = self._apply([v.value for v in optimizer.variables], list(gradients),
                                         [v.value for v in model.trainable_variables])  # fmt: skip
            for variable, value in zip([*model.trainable_variables, *optimizer.variables], [*trained, *owned], strict=True):
                variable.assign(value)
        return self.values_of(reading)

    def to_host(self, gradient: Any) -> AnyArray:
        return to_array(np.asarray(gradient))

    def forms_of(self, gradients: Gradients) -> list[Any] | None:
        return [None if gradient is None else gradient.dtype for gradient in gradients]

    def dtype_of(self, gradient: Any) -> str:
        return str(gradient.dtype)

    def host_of(self, tensors: Sequence[Any]) -> list[Values]:
        return [np.asarray(tensor) for tensor in tensors]

    def to_device(self, array: AnyArray, form: tuple[str, str] | None) -> Any:
        return jax.numpy.asarray(from_array(array))

    def describe(self, model: Any) -> dict[str, Any]:
        return {
            "jax": str(jax.__version__), "devices": [jax.default_backend()], "jit_compile": bool(model.jit_compile),
            "run_eagerly": bool(model.run_eagerly), "xla_flags": os.environ.get("XLA_FLAGS", ""),
        }  # fmt: skip


class State:
    """What `fit` passes from step to step, and which variable each array stands for."""

    def __init__(self, model: Any, parts: Any) -> None:
        self.parts = tuple(list(part) for part in parts)
        owners = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables, model.metrics_variables)
        self._places = {id(v): (part, i) for part, held in zip(self.parts, owners, strict=True) for i, v in enumerate(held)}

    def read(self, variable: Any) -> Any:
        """A variable's value; of one that is not of the model (Keras's global seed), its own."""
        part, i = self._places.get(id(variable), (None, 0))
        return variable.value if part is None else part[i]

    def write(self, variable: Any, values: Values) -> bool:
        """Set a variable's value; False if it is not of the model."""
        part, i = self._places.get(id(variable), (None, 0))
        if part is not None:
            part[i] = jax.numpy.asarray(values)
        return part is not None


class JaxTap(Tap):
    """Keras's train step with the gradients among its outputs.

    Attributes:
        state: what the last step left, until the model has its values back.
        passes: the next call takes no step.
    """

    def __init__(self, model: Any, watcher: Watcher, splits: bool) -> None:
        self._stash: list[list[Any]] | None = None  # while a train step is being traced
        self._state: State | None = None
        self.passes = False
        super().__init__(model, watcher, splits)

    def _put_between(self) -> None:
        self._replace(self._optimizer, "stateless_apply", self._take)
        self._replace(self._model, "train_step", self._train_step)

    @property
    def state(self) -> State | None:
        return None if getattr(self._model, "_jax_state_synced", True) else self._state

    @state.setter
    def state(self, state: State | None) -> None:
        self._state = state

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

    def _steps(self, state: Any, iterator: Any) -> Any:
        if self.passes:
            self.passes = False
            return {}, state
        logs = None
        for _ in range(self._model.steps_per_execution):
            self.state = State(self._model, state)
            self._watcher.begin_step()
            try:
                found, state = self._one(state, iterator)
            except StopIteration:
                if logs is None:
                    raise
                break
            self.state = State(self._model, state)
            if self._splits:
                self._watcher.take_gradients(found["gradients"])
                logs = found["logs"]
            else:
                self._watcher.end_step()
                logs = found
            assert self._state is not None
            state = self._state.parts
        return logs, state


def _is_same(a: Any, b: Any) -> bool:
    """By bits; an array whose memory was given to a later step is another one."""
    if a.is_deleted() or b.is_deleted():
        return False
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()
