"""The global random number generators: Python's, numpy's, torch's where it is imported, Keras's own, and the backend's."""

from __future__ import annotations

import sys
from typing import Any

from tranlogs.training import (
    HostRng,
    is_same_state,
    join_python,
    join_torch,
    read_memory_of,
    set_host_rng,
    split_python,
    split_torch,
)

from .. import keras_internals
from ..backends import Backend
from ..backends.arrays import Values


class Generators:
    """Reads the state of all of them again and again. What has not changed is the same object as before."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._host = HostRng()
        self._memory: Any = None  # of the generator that seeds the backend's operations, when its state was read
        self._seeding: Any = None  # its state, as Python returns it
        self._packed: dict[str, Any] = {}
        self._state: dict[str, Any] = {}

    def read(self, keras_seed: Values | None = None) -> dict[str, Any]:
        """Return the state of all generators; `keras_seed` is that of Keras's own, if it was just read."""
        before = self._state
        now = {**self._host.read(), **_others(self._backend, keras_seed), **self._read_seeding()}
        self._state = {name: before[name] if is_same_state(before.get(name), value) else value for name, value in now.items()}
        return self._state

    def _read_seeding(self) -> dict[str, Any]:
        generator = self._backend.random_generator()
        memory = None if generator is None else read_memory_of(generator)
        if memory is not None and memory == self._memory:
            return self._packed
        self._memory, seen = memory, None if generator is None else generator.getstate()
        if seen != self._seeding:
            self._seeding, self._packed = seen, {"backend": split_python(seen)} if seen is not None else {}
        return self._packed


def get_rng(backend: Backend) -> dict[str, Any]:
    """Return the state of all generators in a form that can be encoded."""
    return Generators(backend).read()


def _others(backend: Backend, keras_seed: Values | None) -> dict[str, Any]:
    state: dict[str, Any] = {}
    torch = sys.modules.get("torch")
    if torch is not None:  # a DataLoader may feed any backend
        whole = torch.get_rng_state().numpy()
        state["torch"] = split_torch(whole) or whole
        if torch.cuda.is_initialized():
            state["cuda"] = [s.numpy() for s in torch.cuda.get_rng_state_all()]
    if keras_seed is None and (seed := keras_internals.global_seed_state()) is not None:
        keras_seed = backend.value_of(seed)
    if keras_seed is not None:
        state["keras"] = keras_seed.copy()
    return state


def set_rng(state: dict[str, Any], backend: Backend, *, but_python: bool = False) -> None:
    """Set all of them; or all but Python's and numpy's, from which threads draw that read ahead."""
    if "keras" in state:  # first: where it is made only now, its seed is drawn from Python's
        backend.assign(keras_internals.make_global_seed(), state["keras"])
    if not but_python:
        set_host_rng(state)
    generator = backend.random_generator()
    if "backend" in state and generator is not None:
        generator.setstate(join_python(state["backend"]))
    if "torch" in state:
        import torch

        split = state["torch"]
        whole = join_torch(*split) if isinstance(split, tuple) else split.copy()
        torch.set_rng_state(torch.from_numpy(whole))
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state_all([torch.from_numpy(s.copy()) for s in state["cuda"]])


def has_drawn(before: dict[str, Any], after: dict[str, Any], backend: Backend) -> bool:
    """Return True if the generator of Python or numpy moved between two states, or torch's where models do not use it."""
    names = ("python", "numpy") if backend.name == "torch" else ("python", "numpy", "torch")
    return any(not is_same_state(before.get(name), after.get(name)) for name in names)
