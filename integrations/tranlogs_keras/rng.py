"""The global random number generators: Python's, numpy's, torch's where it is imported, and Keras's own."""

from __future__ import annotations

import random
import struct
import sys
from typing import Any

import numpy as np

from . import private
from .adapt import Values
from .backends import Backend

_WORDS = struct.Struct("<625I")


class Generators:
    """Reads the state of all of them again and again. What has not changed is the same object as before."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._python: Any = None  # as Python gives it
        self._state: dict[str, Any] = {}

    def read(self, keras_seed: Values | None = None) -> dict[str, Any]:
        """The state of all, encodable; `keras_seed`, where the state of Keras's own was just read."""
        before, python = self._state, random.getstate()
        now = {"python": before["python"] if python == self._python else _packed(python), **_others(self._backend, keras_seed)}
        self._python = python
        self._state = {name: before[name] if _is_same(before.get(name), value) else value for name, value in now.items()}
        return self._state


def get_rng(backend: Backend) -> dict[str, Any]:
    """The state of all of them, encodable."""
    return {"python": _packed(random.getstate()), **_others(backend, None)}


def _packed(python: Any) -> tuple[Any, ...]:
    version, words, gauss = python
    return version, _WORDS.pack(*words), gauss


def _others(backend: Backend, keras_seed: Values | None) -> dict[str, Any]:
    state: dict[str, Any] = {"numpy": np.random.get_state(legacy=True)}
    torch = sys.modules.get("torch")
    if torch is not None:  # a DataLoader may feed any backend
        state["torch"] = torch.get_rng_state().numpy()
        if torch.cuda.is_initialized():
            state["cuda"] = [s.numpy() for s in torch.cuda.get_rng_state_all()]
    if keras_seed is None and (seed := private.global_seed_state()) is not None:
        keras_seed = backend.value_of(seed)
    if keras_seed is not None:
        state["keras"] = keras_seed.copy()
    return state


def set_rng(state: dict[str, Any], backend: Backend, *, but_python: bool = False) -> None:
    """Set all of them; or all but Python's and numpy's, from which threads draw that read ahead."""
    if "keras" in state:  # first: where it is made only now, its seed is drawn from Python's
        backend.assign(private.make_global_seed(), state["keras"])
    if not but_python:
        version, words, gauss = state["python"]
        random.setstate((version, _WORDS.unpack(words), gauss))
        np.random.set_state(state["numpy"])
    if "torch" in state:
        import torch

        torch.set_rng_state(torch.from_numpy(state["torch"].copy()))
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state_all([torch.from_numpy(s.copy()) for s in state["cuda"]])


def has_drawn(before: dict[str, Any], after: dict[str, Any], backend: Backend) -> bool:
    """Whether Python's, numpy's or torch's generator moved between two states; on torch, the model draws from torch's."""
    names = ("python", "numpy") if backend.name == "torch" else ("python", "numpy", "torch")
    return any(not _is_same(before.get(name), after.get(name)) for name in names)


def _is_same(a: Any, b: Any) -> bool:
    if a is b or type(a) is not type(b):
        return a is b
    if isinstance(a, np.ndarray):
        return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(_is_same(x, y) for x, y in zip(a, b))
    return bool(a == b)
