"""Long lists of numbers that grow: the curve of a loss, the lengths of episodes.

A list is stored in blocks, which a log file holds once, so that a boundary writes only the last few numbers. Sixteen blocks of
one size become a larger one, since each costs some microseconds at each boundary. The numbers after the blocks are stored in
two: most of them change once in 32 numbers. A list that is as it was at the last boundary,
apart from what was appended, is recognised by the objects in it: comparing the addresses of a million objects takes 0.5 ms,
and converting them 50 ms. Lists that hold anything else, or both kinds of numbers, are stored item by item.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from operator import is_
from typing import Any

import numpy as np

from ...base.config import OUT_OF_LINE_BYTES_MIN
from ...base.types import Array, Extension
from ...encoding.tree import Fixed, to_numpy

NUMBERS = "numbers"  # tag of the stored form
BLOCK = OUT_OF_LINE_BYTES_MIN // 8  # numbers
_MERGED = 16  # blocks that become one
_LAST = 32  # Of the numbers after the blocks, fewer than these are stored at each boundary.
_DTYPES: dict[type, str] = {float: "<f8", int: "<i8"}
_KINDS = {kind.__name__: kind for kind in _DTYPES}


class NumberLists:
    """Stores lists of numbers, boundary by boundary."""

    def __init__(self) -> None:
        self._known: dict[int, _NumberList] = {}  # by id of the list, which is kept alive
        self._seen: set[int] = set()

    def store(self, value: list[Any]) -> tuple[Any, ...] | None:
        """Return the stored form of a list; None if the list is short, or is not one of floats or of ints of 64 bits."""
        if len(value) < BLOCK or type(value[0]) not in _DTYPES:
            return None
        known = self._known.get(id(value))
        if known is None or not known.grow():
            known = _NumberList(value, type(value[0]))
            if not known.grow():
                return None
            self._known[id(value)] = known
        self._seen.add(id(value))
        return known.stored()

    def end_boundary(self) -> None:
        """Forget the lists that were not stored since the last call."""
        self._known = {key: known for key, known in self._known.items() if key in self._seen}
        self._seen = set()


class _NumberList:
    """A list, and its numbers in blocks.

    Args:
        value: the list.
        kind: of its items.
    """

    def __init__(self, value: list[Any], kind: type) -> None:
        self._value, self._kind = value, kind
        self._items: list[Any] = []  # that are in the blocks
        self._blocks: list[np.ndarray[Any, Any]] = []  # the largest first; they do not change
        self._last = np.zeros(BLOCK, _DTYPES[kind])  # the numbers after these, and zeros
        self._recent = Fixed(b"")  # the first of these

    def grow(self) -> bool:
        """Take up what was appended; return False if anything else was done to the list, or an item is of another kind."""
        start = len(self._items)
        if not _begins_with(self._value, self._items):
            return False
        added = self._value[start:]
        if any(type(item) is not self._kind for item in added):
            return False
        try:
            numbers = np.array(added, _DTYPES[self._kind])
        except OverflowError:
            return False
        self._items += added
        while numbers.size:
            at = start % BLOCK
            part, numbers = numbers[: BLOCK - at], numbers[BLOCK - at :]
            self._last[at : at + part.size] = part
            start += part.size
            if start % BLOCK == 0:
                self._add(self._last)
                self._last = np.zeros(BLOCK, self._last.dtype)
        recent = self._last[: start % BLOCK // _LAST * _LAST].tobytes()
        if recent != self._recent.value:
            self._recent = Fixed(recent)
        return True

    def _add(self, block: np.ndarray[Any, Any]) -> None:
        blocks = self._blocks
        blocks.append(block)
        while len(blocks) >= _MERGED and blocks[-_MERGED].size == blocks[-1].size:
            blocks[-_MERGED:] = [np.concatenate(blocks[-_MERGED:])]

    def stored(self) -> tuple[Any, ...]:
        """Return the stored form."""
        count, recent = len(self._items), self._recent
        last = self._last[len(recent.value) // self._last.itemsize : count % BLOCK].tobytes()
        return NUMBERS, self._kind.__name__, count, [*self._blocks], recent, last


def restore_numbers(kind: str, count: int, blocks: list[Any], recent: bytes | Fixed, last: bytes) -> list[Any]:
    """Return the items of a stored list.

    Raises:
        ValueError: the number of items is another.
    """
    dtype = np.dtype(_DTYPES[_KINDS[kind]])
    items: list[Any] = []
    for block in blocks:
        numbers = to_numpy(block) if isinstance(block, Array) else block
        if numbers.dtype != dtype:
            raise ValueError(f"a block of {numbers.dtype} in a list of {kind}")
        items += numbers.tolist()
    items += np.frombuffer((recent.value if isinstance(recent, Fixed) else recent) + last, dtype).tolist()
    if len(items) != count:
        raise ValueError(f"{len(items)} numbers in a list of {count}")
    return items


def find_other_kind(value: list[Any]) -> int | None:
    """Return the index of the item that keeps a list from being one of floats, or of ints; None if there is no such item."""
    kind = type(value[0]) if value else None
    if kind not in _DTYPES:
        return None
    return next((i for i, item in enumerate(value) if type(item) is not kind), None)


def as_list(value: Any) -> Any:
    """Return the list that a stored form stands for, to compare it item by item; any other value as it is."""
    if isinstance(value, Extension) and value.tag == NUMBERS:
        value = value.value
    if type(value) is not tuple or len(value) != 6 or value[0] != NUMBERS:
        return value
    try:
        return restore_numbers(*value[1:])
    except (AttributeError, KeyError, TypeError, ValueError):  # a tuple of the script's own
        return value


def _begins_with(value: list[Any], items: list[Any]) -> bool:
    """Return True if the first items of a list are these objects."""
    count = len(items)
    if len(value) < count:
        return False
    if is_memory_telling():
        return bool(np.array_equal(_addresses_of(value, count), _addresses_of(items, count)))
    return all(map(is_, items, value))


@cache
def is_memory_telling() -> bool:
    """Return True if the memory of a list holds the addresses of its items where CPython has them, tried with a list.

    No address is followed before it is known to be one. A list has three words of its own: its length, the address of its
    items, and the number of items that it has room for. The first and the last have to be what Python says of the list.
    """
    word, head = ctypes.sizeof(ctypes.c_size_t), object.__basicsize__
    if sys.implementation.name != "cpython" or list.__basicsize__ != head + 3 * word:
        return False
    items = [object() for _ in range(8)]
    items.append(object())  # room for more than it has
    length, _, room = (ctypes.c_size_t * 3).from_address(id(items) + head)
    if (length, list.__basicsize__ + room * word) != (9, list.__sizeof__(items)) or length == room:
        return False
    is_before: bool = _addresses_of(items, 9).tolist() == [id(item) for item in items]
    items[4] = object()
    is_after: bool = _addresses_of(items, 9).tolist() == [id(item) for item in items]
    return is_before and is_after


def _addresses_of(items: list[Any], count: int) -> np.ndarray[Any, np.dtype[np.uintp]]:
    """Return the addresses of the first items, as a view of the list's memory that holds until the list changes."""
    if not count:
        return np.empty(0, np.uintp)
    place = id(items) + object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t)  # after the head and the length
    first = ctypes.c_void_p.from_address(place).value
    assert first is not None
    return np.ctypeslib.as_array((ctypes.c_size_t * count).from_address(first)).view(np.uintp)
