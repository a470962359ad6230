"""The random state of Python and numpy, which every script may draw from."""

from __future__ import annotations

import ctypes
import random
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

_WORDS = struct.Struct("<625I")
_generators: Any = np.random  # numpy's stubs do not have get_bit_generator
_NUMPY_BYTES = 625 * 4  # of a Mersenne Twister: 624 words and a position


def python_state() -> tuple[Any, ...]:
    """Return the state of Python's global generator, with its words packed."""
    return _packed(random.getstate())


def numpy_state() -> Any:
    """Return the state of numpy's global generator: a tuple for the Mersenne Twister, a dict for others."""
    if type(_generators.get_bit_generator()) is np.random.MT19937:
        return np.random.get_state(legacy=True)
    return np.random.get_state(legacy=False)


def set_host_rng(state: dict[str, Any]) -> None:
    """Set both.

    Raises:
        ValueError: numpy's global generator is of another kind now than when its state was read.
    """
    version, words, gauss = state["python"]
    random.setstate((version, _WORDS.unpack(words), gauss))
    np.random.set_state(state["numpy"])


class HostRng:
    """Reads both states again and again. What has not changed is the same object as before."""

    def __init__(self) -> None:
        self._seen: Any = None  # of Python's, as Python gives it
        self._python: tuple[Any, ...] = ()
        self._numpy = _NumpyRng()

    def read(self) -> dict[str, Any]:
        """Return the states by name, encodable."""
        seen = random.getstate()
        if seen != self._seen:
            self._seen, self._python = seen, _packed(seen)
        return {"python": self._python, "numpy": self._numpy.read()}


class _NumpyRng:
    """Reads numpy's state where somebody may have drawn: `get_state` takes 30 us.

    The words of a Mersenne Twister are looked at where they lie (`BitGenerator.ctypes`,
    https://numpy.org/doc/stable/reference/random/extending.html). Beside them numpy keeps the second number of each pair
    that `randn` and its kin draw, which only `get_state` tells: once one was kept, the state is read each time.
    """

    def __init__(self) -> None:
        self._generator: Any = None
        self._memory: npt.NDArray[np.uint8] | None = None  # of the generator; None if it is no Mersenne Twister
        self._words = b""
        self._draws_pairs = False
        self._state: Any = None

    def read(self) -> Any:
        generator = _generators.get_bit_generator()
        if generator is not self._generator:
            self._generator, self._memory, self._words = generator, _memory_of(generator), b""
        words = b"" if self._memory is None else self._memory.tobytes()
        if not words or words != self._words or self._draws_pairs:
            state = numpy_state()
            if not is_same_state(state, self._state):
                self._state = state
            self._words = words
            self._draws_pairs |= isinstance(state, tuple) and bool(state[3])
        return self._state


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


def _packed(python: Any) -> tuple[Any, ...]:
    version, words, gauss = python
    return version, _WORDS.pack(*words), gauss


def _memory_of(generator: Any) -> npt.NDArray[np.uint8] | None:
    if type(generator) is not np.random.MT19937:
        return None
    return np.ctypeslib.as_array((ctypes.c_uint8 * _NUMPY_BYTES).from_address(generator.ctypes.state_address))
