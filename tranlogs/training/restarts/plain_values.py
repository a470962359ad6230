"""Digests of plain values: numbers, strings, arrays, and containers of these.

A digest is that of the whole value up to a size, and of samples beyond it; what it reads depends on the value alone. It holds
no reference to the value. Two values of the same content have the same digest in every process, and a set or dict has one
whatever its order. A random generator is known by its state. A look that has read enough goes on with brief digests: of a
container type and length, of an array type and shape.
"""

from __future__ import annotations

import math
import random
from array import array as Numbers
from collections import UserDict, UserList, deque
from collections.abc import Callable, Container
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from hashlib import blake2b
from itertools import count, islice
from pathlib import PurePath
from queue import Queue
from typing import Any

import numpy as np

LOOK_BYTES_MAX = 1 << 22  # of arrays, and of numbers in long containers, that one look reads before it becomes brief
LOOK_ITEMS_MAX = 20_000
DEPTH_MAX = 4  # of containers within each other

_VALUE_BYTES = 1 << 20  # of these, for one value
_VALUE_ITEMS = 1_000
_ARRAY_BYTES = 1 << 14  # a larger array is sampled
_SAMPLES = 2048
_TEXT = 4096  # characters; a longer text is known by its length and its ends
_ENDS = 256  # items at each end of a long list, and samples of its middle
_SHORT = 64  # bytes; the encoding of a longer item is digested
_BRIEF = b"brief"  # with which a brief digest begins
_NUMBER_BYTES = 64  # about, that a number in a long container takes
_FIRST_MAX = 40  # characters of a first value that is shown
ATOMS = (type(None), bool, int, float, complex)
_NUMBERS = (int, float, complex)  # of which there are subclasses
_CONTAINERS = (list, tuple, set, frozenset, deque, dict)
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
UNKNOWN = "..."  # a first value that cannot be written in a line

ReadArray = Callable[[Any], "np.ndarray[Any, Any] | None"]


class Look:
    """One look at plain values. Items and bytes are counted, and no time is measured: what it finds is the same at each start.

    Args:
        read_array: returns a framework's tensor as an array without copying much; None if it is none, or is kept.
        kept: ids of objects that the run keeps, or has kept: a container that has one is not changed by what happens to it.
            What is made while a look runs may have the id of one that is gone, and is never looked up.
    """

    def __init__(self, read_array: ReadArray, kept: Container[int] = ()) -> None:
        self._read_array, self._kept = read_array, kept
        self._all_items = self._all_bytes = 0  # of the values before
        self._items = self._bytes = 0  # that are left for this value

    def digest(self, value: Any, known: bytes | None = None) -> bytes | None:
        """Return the digest of a plain value, as brief as the known one with which it is compared; None for another value."""
        is_brief = self._all_items >= LOOK_ITEMS_MAX or self._all_bytes >= LOOK_BYTES_MAX
        is_brief = is_brief if known is None else known.startswith(_BRIEF)
        self._items, self._bytes = (1, 0) if is_brief else (_VALUE_ITEMS, _VALUE_BYTES)
        found = self._encode(value, 0)
        if not is_brief:
            self._all_items += _VALUE_ITEMS - self._items
            self._all_bytes += _VALUE_BYTES - self._bytes
        return None if found is None else (_BRIEF if is_brief else b"") + blake2b(found, digest_size=8).digest()

    def _encode(self, value: Any, depth: int) -> bytes | None:
        self._items -= 1
        kind = type(value)
        if kind in ATOMS:
            return f"{kind.__name__} {hex(value) if kind is int else repr(value)}".encode()
        if kind in (str, bytes, bytearray):
            text: bytes = value.encode("utf-8", "surrogatepass") if kind is str else value
            ends = text if len(text) <= _TEXT else text[: _TEXT // 2] + text[-_TEXT // 2 :]
            return f"{kind.__name__} {len(text)} ".encode() + ends
        if isinstance(value, (Enum, PurePath, Fraction, Decimal)) or kind is count:
            return f"{kind.__name__} {value!r}".encode()
        if isinstance(value, _NUMBERS) and not isinstance(value, np.generic):
            return f"{kind.__name__} {next(base for base in _NUMBERS if isinstance(value, base)).__repr__(value)}".encode()
        if (inside := _inside(value)) is not None:
            found = self._encode(inside, depth)
            return None if found is None else f"{kind.__name__} ".encode() + found
        if kind is Numbers:
            return self._encode_array(np.frombuffer(value, np.uint8))
        if isinstance(value, _CONTAINERS):
            return self._encode_container(value, depth) if depth < DEPTH_MAX else None
        if is_generator(value):
            return None if isinstance(value, random.SystemRandom) else self._encode_state(value, depth)
        array = value if isinstance(value, (np.ndarray, np.generic)) else self._read_array(value)
        return None if array is None else self._encode_array(np.asarray(array))

    def _encode_state(self, generator: Any, depth: int) -> bytes | None:
        kept, self._kept = self._kept, ()
        try:
            return self._encode(_state_of(generator), depth)
        finally:
            self._kept = kept

    def _encode_container(self, value: Any, depth: int) -> bytes:
        name = next(kind.__name__ for kind in _CONTAINERS if isinstance(value, kind))
        head = f"{name} {len(value)} ".encode()
        if self._items <= 0:
            return head
        is_long = len(value) > 2 * _ENDS
        if is_long and 0 < (size := _number_bytes(value)) <= self._bytes:
            self._bytes -= size
            texts = map(repr, value.items() if isinstance(value, dict) else value)
            return head + "".join(texts if isinstance(value, (list, tuple, deque)) else sorted(texts)).encode()
        if isinstance(value, dict):
            parts = sorted(self._part(key, depth) + self._part(value.get(key), depth) for key in _sample(value))
        elif isinstance(value, (set, frozenset)):
            parts = [] if is_long else sorted(self._part(one, depth) for one in value)
        else:
            parts = [self._part(one, depth) for one in _sample(value)]
        return head + b"".join(parts)

    def _part(self, value: Any, depth: int) -> bytes:
        """Return the encoding of an item, or a digest of a long one; of one that is not plain, its class."""
        found = None if id(value) in self._kept else self._encode(value, depth + 1)
        found = f"object {type(value).__name__}".encode() if found is None else found
        return b"%d:%b" % (len(found), found) if len(found) <= _SHORT else blake2b(found, digest_size=16).digest()

    def _encode_array(self, array: np.ndarray[Any, Any]) -> bytes | None:
        if array.dtype.hasobject:
            return None
        head, content = f"array {array.dtype.str} {array.shape} ".encode(), array
        if self._bytes <= 0:
            return head
        if array.nbytes > _ARRAY_BYTES:
            content = array.flat[np.linspace(0, array.size - 1, _SAMPLES).astype(np.int64)]
        self._bytes -= content.nbytes
        return head + content.tobytes()


def _inside(value: Any) -> Any:
    """Return what an object of the standard library holds; None for another value."""
    if isinstance(value, (UserDict, UserList)):
        return value.data
    if isinstance(value, Queue):
        return value.queue
    return [*value.args, *value.keywords, *value.keywords.values()] if isinstance(value, partial) else None


def _sample(value: Any) -> list[Any]:
    """Return the items of a list, or the keys of a dict; of a long one, the last ones, some of all, and the first ones."""
    if len(value) <= 2 * _ENDS:
        return list(value)
    middle = islice(value, _ENDS, len(value) - _ENDS, max((len(value) - 2 * _ENDS) // _ENDS, 1))
    return [*islice(reversed(value), _ENDS), *islice(middle, _ENDS), *islice(value, _ENDS)]


def _number_bytes(value: Any) -> int:
    """Return about how many bytes the text of a container of numbers takes; 0 if it has other values."""
    items, size = value, len(value) * _NUMBER_BYTES
    if isinstance(value, dict):
        items, keys = value.values(), set(map(type, value))
        size = size + sum(map(len, value)) if keys == {str} else size if keys.issubset(ATOMS) else 0
    return size if set(map(type, items)).issubset(ATOMS) else 0


def is_generator(value: Any) -> bool:
    """Return True for a random generator of Python, numpy or PyTorch."""
    kind = type(value)
    return isinstance(value, _GENERATORS) or (kind.__name__ == "Generator" and kind.__module__ == "torch._C")


def _state_of(generator: Any) -> Any:
    """Return the state of a random generator, as an object that keeps it has it in its own state."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def write_first(value: Any) -> str:
    """Return a value as a line of Python has it; "..." if it is not short."""
    if type(value) is float and not math.isfinite(value):
        return f'float("{value}")'
    if type(value) in ATOMS or (type(value) is str and value.isprintable()):
        found = repr(value)
    elif type(value) in (list, tuple, dict) and all(type(one) in ATOMS for one in islice(_leaves(value), 9)):
        found = repr(value) if len(value) < 9 and not any(_is_infinite(one) for one in _leaves(value)) else UNKNOWN
    elif type(value) is dict and len(value) < 9 and all(type(one) in (list, dict) and not one for one in value.values()):
        found = repr(value)
    elif type(value) is set and not value:
        found = "set()"
    elif type(value) is deque and not value:
        found = "deque()" if value.maxlen is None else f"deque(maxlen={value.maxlen})"
    elif type(value) is count:
        found = repr(value)[len("count(") : -1].partition(",")[0]
    else:
        return UNKNOWN
    return found if len(found) <= _FIRST_MAX else UNKNOWN


def _leaves(value: Any) -> list[Any]:
    return [*value.values()] if isinstance(value, dict) else list(value)


def _is_infinite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
