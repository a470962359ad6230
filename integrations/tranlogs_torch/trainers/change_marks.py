"""Marks of values: two marks of one attribute differ if the value was replaced or changed in place between them."""

from __future__ import annotations

import functools
import sys
from collections import deque
from typing import Any

import numpy as np
import torch
import xxhash

ITEMS_MAX = 10_000  # of one attribute, counted through its containers
ELEMENTS_MAX = 1 << 20  # of all tensors and arrays of one attribute
SCALARS = frozenset({bool, int, float, str, bytes, type(None)})


class TooLarge(Exception):
    """A value is too large to be read at each boundary."""


class Budget:
    """Limit on the values that are read of one attribute."""

    def __init__(self) -> None:
        self._items, self._elements = ITEMS_MAX, ELEMENTS_MAX

    def take(self) -> None:
        """Count one value.

        Raises:
            TooLarge: there are too many.
        """
        self._items -= 1
        if self._items < 0:
            raise TooLarge

    def take_elements(self, count: int) -> None:
        """Count the elements of a tensor.

        Raises:
            TooLarge: there are too many.
        """
        self._elements -= count
        if self._elements < 0:
            raise TooLarge


class _Same:
    """Equal if it is the same object, of the same version."""

    __slots__ = ("_value", "_version")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Any, version: int = 0) -> None:
        self._value, self._version = value, version

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value and self._version == other._version


def mark_of(value: Any) -> Any:
    """Return the mark of a value; None if it is too large to be read at each boundary."""
    try:
        return _mark(value, Budget(), set())
    except (TooLarge, RecursionError):
        return None


def _mark(value: Any, budget: Budget, above: set[int]) -> Any:
    budget.take()
    kind = type(value)
    if kind in SCALARS:
        return (kind, repr(value) if kind is float else value)
    if isinstance(value, torch.Tensor):  # its memory is not read: a write counts in its version
        return (kind, _Same(value)) if value.is_inference() else (kind, _Same(value, value._version))
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        budget.take_elements(value.size)
        return (kind, value.shape, str(value.dtype), xxhash.xxh3_128_digest(np.ascontiguousarray(value).tobytes()))
    if id(value) in above:
        return (kind, _Same(value))
    return (kind, *_inside(value, budget, above | {id(value)}))


def _inside(value: Any, budget: Budget, above: set[int]) -> tuple[Any, ...]:
    if isinstance(value, dict):
        return tuple((_mark(key, budget, above), _mark(item, budget, above)) for key, item in list(value.items()))
    if isinstance(value, list | tuple | deque):
        return tuple(_mark(item, budget, above) for item in list(value))
    if isinstance(value, set | frozenset):
        return (frozenset(value),)
    kind: Any = type(value)
    if _is_of_the_script(kind) and not isinstance(value, torch.nn.Module):
        return (
            _Same(value),
            *((name, _mark(item, budget, above)) for name, item in list(getattr(value, "__dict__", {}).items())),
        )
    return (_Same(value),)


@functools.cache
def _is_of_the_script(kind: type) -> bool:
    """Return True if the user has defined a class. Training does not depend on changes inside objects of libraries."""
    root = kind.__module__.partition(".")[0]
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return root not in sys.stdlib_module_names - {"__main__"} and not {"site-packages", "dist-packages"} & set(
        file.replace("\\", "/").split("/")
    )
