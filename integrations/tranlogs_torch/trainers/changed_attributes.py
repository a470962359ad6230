"""Plain attributes of an object (a trainer, a module, a callback) that its class changes while training.

An attribute is compared with what it was when training began. From its first change on it is stored at each boundary. What has
changed and cannot be stored is named: an object with a state, an iterator, a value that is too large.
"""

from __future__ import annotations

import functools
import json
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Container, Iterator, Sequence
from inspect import isfunction
from typing import Any

import numpy as np
import torch
import xxhash

from tranlogs.base.errors import UnencodableState
from tranlogs.base.types import Extension
from tranlogs.records import Fixed, tree
from tranlogs.training import NumberLists, restore_numbers

from ..tensors import arrays

ITEMS_MAX = 10_000  # of one attribute, counted through its containers
ELEMENTS_MAX = 1 << 20  # of all tensors and arrays of one attribute
SCALARS = frozenset({bool, int, float, str, bytes, type(None)})

_BLOCK_BYTES = 1 << 12


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


class Appended:
    """Lines of JSON in blocks: only the last one changes, and only when something is appended."""

    def __init__(self) -> None:
        self._blocks = [Fixed(b"")]
        self._count = 0

    def packed(self, entries: Sequence[Any]) -> list[Fixed]:
        """Pack the list as it is now. Items that were packed before must not have changed."""
        if len(entries) < self._count:
            self._blocks, self._count = [Fixed(b"")], 0
        lines = b"".join(json.dumps(entry).encode() + b"\n" for entry in entries[self._count :])
        self._count = len(entries)
        if lines:
            if len(self._blocks[-1].value) >= _BLOCK_BYTES:
                self._blocks.append(Fixed(b""))
            self._blocks[-1] = Fixed(self._blocks[-1].value + lines)
        return list(self._blocks)

    def unpacked(self, packed: Sequence[bytes | Fixed]) -> list[Any]:
        """Return the list that was packed, and continue from there."""
        self._blocks = [block if isinstance(block, Fixed) else Fixed(block) for block in packed]
        entries = [json.loads(line) for block in self._blocks for line in block.value.splitlines()]
        self._count = len(entries)
        return entries


CANNOT_BE_STORED = (
    "changes during training and cannot be stored, so it starts over in a resumed process. Keep numbers, strings, tensors, "
    f"or lists and dicts of these in it, at most {ITEMS_MAX:,} of them"
)
_FACTORIES: dict[str, Any] = {kind.__name__: kind for kind in (list, dict, set, int, float, str, deque)}


class ChangedAttributes:
    """The attributes of one object that have changed since this was made.

    Args:
        owner: the object.
        ignored: names of attributes that are not its class's own, but those of a framework.

    Attributes:
        lost: names of attributes that have changed and cannot be stored.
    """

    def __init__(self, owner: Any, ignored: Container[str]) -> None:
        self._owner, self._ignored = owner, ignored
        self._given = {name: (value, mark_of(value)) for name, value in self._attributes()}
        self._carried: set[str] = set()
        self._number_lists = NumberLists()
        self.lost: set[str] = set()

    def settle(self) -> None:
        """Training begins now: objects that hooks have made since this was made are made again by each start."""
        for name, value in self._attributes():
            if name not in self._carried and self._has_changed(name, value) and self._stored_or_none(value) is None:
                self._given[name] = (value, mark_of(value))

    def read(self) -> dict[str, Any]:
        """Return the attributes that have changed, as values that can be stored."""
        found = {}
        for name, value in self._attributes():
            if name in self.lost or not (name in self._carried or self._has_changed(name, value)):
                continue
            stored = self._stored_or_none(value)
            if stored is None:
                self.lost.add(name)
            else:
                self._carried.add(name)
                self._given.pop(name, None)
                found[name] = stored[0]
        self._number_lists.end_boundary()
        return found

    def write(self, recorded: dict[str, Any]) -> None:
        """Set recorded attributes. A container that is there is filled, and stays the object that it is."""
        attributes = dict(self._attributes())
        for name, value in recorded.items():
            setattr(self._owner, name, _restored(attributes.get(name), value))
            self._carried.add(name)
            self._given.pop(name, None)

    def _attributes(self) -> Iterator[tuple[str, Any]]:
        """Yield the attributes but those that stand in for a method: wrappers replace `forward` for a while."""
        kind = type(self._owner)
        for name, value in list(vars(self._owner).items()):
            if name not in self._ignored and not isfunction(getattr(kind, name, None)):
                yield name, value

    def _has_changed(self, name: str, value: Any) -> bool:
        if name not in self._given:
            return True
        given, mark = self._given[name]
        if mark is None:  # too large to be read at each boundary
            return value is not given
        return bool(mark_of(value) != mark)

    def _stored_or_none(self, value: Any) -> tuple[Any] | None:
        """Return a copy of a value of types that the format has, in a tuple; None if it cannot be stored."""
        try:
            return (_stored(value, Budget(), self._number_lists),)
        except (UnencodableState, RecursionError, TooLarge):
            return None


def _stored(value: Any, budget: Budget, number_lists: NumberLists) -> Any:
    budget.take()
    kind = type(value)
    if kind in SCALARS:
        return value
    if kind is torch.Tensor:
        budget.take_elements(value.numel())
        copy = value.detach().clone()
        if value.dtype not in arrays.NAMES or value.layout is not torch.strided:
            tree.encode(copy, adapt=arrays.adapt)
        return copy if value.device.type == "cpu" else Extension("on", (str(value.device), copy))
    if kind is np.ndarray:
        budget.take_elements(value.size)
        tree.encode(value[:0] if value.ndim else value)
        return value.copy()
    if kind is deque:
        return Extension("deque", (value.maxlen, [_stored(item, budget, number_lists) for item in value]))
    if kind is defaultdict:
        factory = value.default_factory
        name = next((name for name, known in _FACTORIES.items() if known is factory), "")
        return Extension("defaultdict", (name, {key: _stored(item, budget, number_lists) for key, item in value.items()}))
    if kind is dict or kind is OrderedDict:
        pairs = ((key if type(key) in SCALARS else _plain(key), item) for key, item in value.items())
        return kind((key, _stored(item, budget, number_lists)) for key, item in pairs)
    if kind is list and (numbers := number_lists.store(value)) is not None:
        return Extension("numbers", numbers)
    if kind is list or kind is tuple:
        return kind(_stored(item, budget, number_lists) for item in value)
    return _plain(value)


def _plain(value: Any) -> Any:
    """Return a copy of a value that is stored as it is.

    Raises:
        UnencodableState: it cannot be stored.
    """
    encoded = tree.encode(value, adapt=arrays.adapt)
    if len(encoded) > 8 * ELEMENTS_MAX:
        raise TooLarge
    return tree.decode(encoded, make_array=arrays.make_array, make_extension=arrays.make_extension)


def _restored(old: Any, new: Any) -> Any:
    """Restore a recorded value, in the existing container if it is of the same kind."""
    if isinstance(new, Extension):
        return _restored_extension(old, new)
    if type(new) in (dict, OrderedDict):
        return _filled(old if type(old) is type(new) else type(new)(), new)
    if type(new) is list:
        return _refilled(old if type(old) is list else [], new)
    if type(new) is tuple:
        return tuple(_restored(None, item) for item in new)
    if isinstance(new, torch.Tensor):
        return new.clone()
    return new.copy() if isinstance(new, np.ndarray) else new


def _restored_extension(old: Any, new: Extension) -> Any:
    if new.tag == "on":
        device, tensor = new.value
        return tensor.to(device, copy=True)
    if new.tag == "numbers":
        return _refilled(old if type(old) is list else [], restore_numbers(*new.value[1:]))
    if new.tag == "deque":
        length, items = new.value
        return _refilled(old if type(old) is deque and old.maxlen == length else deque(maxlen=length), items)
    if new.tag == "defaultdict":
        factory, items = new.value
        return _filled(old if type(old) is defaultdict else defaultdict(_FACTORIES.get(factory)), items)
    return new


def _filled(target: Any, items: dict[Any, Any]) -> Any:
    before = dict(target)
    target.clear()
    for key, item in items.items():
        target[key] = _restored(before.get(key), item)
    return target


def _refilled(target: Any, items: list[Any]) -> Any:
    target.clear()
    target.extend(_restored(None, item) for item in items)
    return target
