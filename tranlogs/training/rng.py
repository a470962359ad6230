"""Random states of Python and numpy, as the log stores them, and the memory of their global generators.

The memory of a generator shows at little cost whether its state has changed.

`random.getstate()` builds a tuple of 625 numbers and `numpy.random.get_state()` an array: some 80 us at each boundary. The
words of a Mersenne Twister lie in the memory of its object (CPython) or at an address that numpy gives
(`BitGenerator.ctypes.state_address`); reading them takes 2 us. numpy keeps the normal number that its legacy generator has
left over in the memory of the RandomState, Python in an attribute. Bytes are only compared with earlier bytes, never
interpreted: bytes that differ cost a call of `getstate`, and no more. Whether equal bytes mean an equal state is tried once
in each process, with generators of its own; where they do not, states are always read in full.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..base.types import Bytes

# numpy's stubs do not have get_bit_generator

_PYTHON = struct.Struct("<625I")  # the words, and the place of the next one
_WORDS = 624
_TORCH_WORDS_AT = 24  # Seed, place of the next word and flags stand before the words; what is left of a pair of normals, after.
_TORCH_BYTES = 5056  # A word takes 8 bytes.
_TORCH_WORDS_END = _TORCH_WORDS_AT + 8 * _WORDS
SplitPython = tuple[int, "np.ndarray[Any, np.dtype[np.uint32]]", int, float | None]
SplitTorch = tuple["np.ndarray[Any, np.dtype[np.uint32]]", bytes]
_generators: Any = np.random  # numpy's stubs do not have get_bit_generator
_WORDS_OF_NUMPY = ctypes.c_char * (624 * 4 + 4)  # of its Mersenne Twister: the words, and the place of the next one


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
    """Reads both states repeatedly. A state that has not changed is returned as the same object.

    Attributes:
        state: both states by name, as they were read last.
    """

    def __init__(self) -> None:
        self._python_memory: Any = None  # when the state was read
        self._numpy_memory: Any = None
        self._seen: Any = None  # Python's state, as Python returns it
        self.state: dict[str, Any] = {"python": (), "numpy": None}

    def read(self) -> dict[str, Any]:
        """Return the states by name, in a form that can be encoded."""
        self.has_drawn()
        return self.state

    def has_drawn(self) -> bool:
        """Bring `state` up to date; return True if one of the two has changed since the last call."""
        before = self.state
        memory = _python_memory(getattr(random.getstate, "__self__", None)) if is_python_memory_telling() else None
        if memory is None or memory != self._python_memory:
            self._python_memory, seen = memory, random.getstate()
            if seen != self._seen:
                self._seen, self.state = seen, {**self.state, "python": split_python(seen)}
        memory = read_numpy_memory()
        if memory is None or memory != self._numpy_memory:
            # Compare the whole state: `set_state` may set the same words with another cached normal.
            self._numpy_memory, numpys = memory, numpy_state()
            if not is_same_state(numpys, self.state["numpy"]):
                self.state = {**self.state, "numpy": numpys}
        return self.state is not before


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


def split_python(state: tuple[Any, ...]) -> SplitPython:
    """Split the result of `random.Random.getstate()`: version, words, place of the next word, normal that is left over."""
    version, words, gauss = state
    return version, np.frombuffer(_PYTHON.pack(*words), np.uint32, _WORDS), words[_WORDS], gauss


def join_python(state: Any) -> tuple[Any, ...]:
    """Return what `random.Random.setstate()` takes."""
    version, words, at, gauss = state
    return version, (*words.tolist(), at), gauss


def split_torch(state: Bytes) -> SplitTorch | None:
    """Split the state of torch's generator of the CPU; return None if it has not the length and the form of one."""
    if state.dtype != np.uint8 or state.shape != (_TORCH_BYTES,):
        return None
    halves = state[_TORCH_WORDS_AT:_TORCH_WORDS_END].copy().view(np.uint32)
    if halves[1::2].any():
        return None
    return halves[::2].copy(), state[:_TORCH_WORDS_AT].tobytes() + state[_TORCH_WORDS_END:].tobytes()


def join_torch(words: np.ndarray[Any, Any], rest: bytes) -> Bytes:
    """Return the state that was split.

    Raises:
        ValueError: the parts have other sizes.
    """
    if words.dtype != np.uint32 or words.shape != (_WORDS,) or len(rest) != _TORCH_BYTES - 8 * _WORDS:
        raise ValueError(f"a random state of {words.size} words and {len(rest)} bytes")
    return np.concatenate(
        (
            np.frombuffer(rest[:_TORCH_WORDS_AT], np.uint8),
            words.astype(np.uint64).view(np.uint8),
            np.frombuffer(rest[_TORCH_WORDS_AT:], np.uint8),
        )
    )


def read_memory_of(generator: Any) -> Any:
    """Return a value that is equal to an earlier one only if a `random.Random` has the same state; None if unknown."""
    return _python_memory(generator) if is_python_memory_telling() else None


def read_numpy_memory() -> Any:
    """Return a value that is equal to an earlier one only if numpy's global generator has the same state; None if unknown."""
    if not is_numpy_memory_telling():
        return None
    return _numpy_memory(getattr(np.random.get_state, "__self__", None), _generators.get_bit_generator())


@cache
def is_python_memory_telling() -> bool:
    """Return True if the memory of a `random.Random` shows each change of its state."""
    generator = random.Random(1)
    changes: list[Callable[[], object]] = [generator.random, generator.random, lambda: generator.gauss(0.0, 1.0)]
    return _is_telling(lambda: _python_memory(generator), generator.getstate, generator.setstate, changes)


@cache
def is_numpy_memory_telling() -> bool:
    """Return True if the memory of a RandomState shows each change of its state, that of the cached normal number included."""
    words = np.random.MT19937(1)
    generator = np.random.RandomState(words)
    changes: list[Callable[[], object]] = [generator.random_sample, generator.standard_normal, generator.standard_normal]
    found: Any = generator.get_state(legacy=True)
    name, key, at, _, normal = found
    for has_normal, value in ((1, 0.5), (1, 0.25), (0, normal)):  # the same words with another cached normal number

        def set_normal(has_normal: int = has_normal, value: float = value) -> None:
            generator.set_state((name, key, at, has_normal, value))

        changes.append(set_normal)
    return _is_telling(
        lambda: _numpy_memory(generator, words), lambda: generator.get_state(legacy=True), generator.set_state, changes
    )


def _is_telling(
    read: Callable[[], Any], get: Callable[[], Any], put: Callable[[Any], None], changes: list[Callable[[], object]]
) -> bool:
    """Return True if each change shows in memory, and setting a state back shows, too."""
    for change in changes:
        state, before = get(), read()
        if before is None or read() != before:
            return False
        change()
        if read() == before:
            return False
        after = read()
        put(state)
        if read() == after:
            return False
        change()
    return True


def _python_memory(generator: Any) -> Any:
    if type(generator) is not random.Random:  # a subclass may keep its state elsewhere
        return None
    own = _object_memory(generator)
    return None if own is None else (own, generator.gauss_next)  # type: ignore[attr-defined]


def _numpy_memory(generator: Any, words: Any) -> Any:
    if type(words) is not np.random.MT19937 or type(generator) is not np.random.RandomState:
        return None
    if generator._bit_generator is not words:  # the script has put another RandomState in place of the global one
        return None
    own = _object_memory(generator)
    return None if own is None else (own, _WORDS_OF_NUMPY.from_address(words.ctypes.state_address).raw)


def _object_memory(thing: object) -> bytes | None:
    """Return the bytes of an object behind its header; None if this Python does not give the address of an object."""
    if sys.implementation.name != "cpython":
        return None
    header = object.__basicsize__
    return (ctypes.c_char * (type(thing).__basicsize__ - header)).from_address(id(thing) + header).raw
