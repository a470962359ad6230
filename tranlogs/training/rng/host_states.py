"""The random states of Python and numpy, which any script may use."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from .generator_memory import read_numpy_memory, read_python_memory
from .mersenne_twister import join_python, split_python

_generators: Any = np.random  # numpy's stubs do not have get_bit_generator


def python_state() -> tuple[Any, ...]:
    """Return the state of Python's global generator, split."""
    return split_python(random.getstate())


def numpy_state() -> Any:
    """Return the state of numpy's global generator: a tuple for the Mersenne Twister, a dict for others."""
    if type(_generators.get_bit_generator()) is np.random.MT19937:
        return np.random.get_state(legacy=True)
    return np.random.get_state(legacy=False)


def set_host_rng(state: dict[str, Any]) -> None:
    """Set both states.

    Raises:
        ValueError: numpy's global generator is of another kind than when its state was read.
    """
    random.setstate(join_python(state["python"]))
    np.random.set_state(state["numpy"])


class HostRng:
    """Reads both states repeatedly. A state that has not changed is returned as the same object."""

    def __init__(self) -> None:
        self._python_memory: Any = None  # when the state was read
        self._numpy_memory: Any = None
        self._seen: Any = None  # Python's state, as Python returns it
        self._python: tuple[Any, ...] = ()
        self._numpy: Any = None

    def read(self) -> dict[str, Any]:
        """Return the states by name, in a form that can be encoded."""
        memory = read_python_memory()
        if memory is None or memory != self._python_memory:
            self._python_memory, seen = memory, random.getstate()
            if seen != self._seen:
                self._seen, self._python = seen, split_python(seen)
        memory = read_numpy_memory()
        if memory is None or memory != self._numpy_memory:
            # Compare the whole state: `set_state` may set the same words with another cached normal.
            self._numpy_memory, numpys = memory, numpy_state()
            if not is_same_state(numpys, self._numpy):
                self._numpy = numpys
        return {"python": self._python, "numpy": self._numpy}


def is_same_state(a: Any, b: Any) -> bool:
    """Return True if two states are equal to the bit."""
    if a is b or type(a) is not type(b):
        return a is b
    if isinstance(a, np.ndarray):
        return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(is_same_state(value, b[key]) for key, value in a.items())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(is_same_state, a, b))
    return bool(a == b)
