"""The memory of Python's and numpy's global random generators: it shows at little cost whether a state has changed.

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
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

_generators: Any = np.random  # numpy's stubs do not have get_bit_generator
_WORDS_BYTES = 624 * 4 + 4  # of numpy's Mersenne Twister: its words, and the place of the next one


def read_python_memory() -> Any:
    """Return a value that is equal to an earlier one only if Python's global generator has the same state; None if unknown."""
    return read_memory_of(getattr(random.getstate, "__self__", None))


def read_memory_of(generator: Any) -> Any:
    """Return the same of a generator that is not the global one."""
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
    return None if own is None else (own, ctypes.string_at(words.ctypes.state_address, _WORDS_BYTES))


def _object_memory(thing: object) -> bytes | None:
    """Return the bytes of an object behind its header; None if this Python does not give the address of an object."""
    if sys.implementation.name != "cpython":
        return None
    header = object.__basicsize__
    return ctypes.string_at(id(thing) + header, type(thing).__basicsize__ - header)
