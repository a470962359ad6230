"""Plain attributes of an object (a trainer, a module, a callback) that its class changes while training.

An attribute is compared with what it was when training began. From its first change on it is stored at each boundary. What has
changed and cannot be stored is named: an object with a state, an iterator, a value that is too large.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Container, Iterator
from inspect import isfunction
from typing import Any

import numpy as np
import torch

from tranlogs.base.errors import UnencodableState
from tranlogs.base.types import Extension
from tranlogs.records import tree
from tranlogs.training import NumberLists, restore_numbers

from ..tensors import arrays
from .change_marks import ELEMENTS_MAX, ITEMS_MAX, SCALARS, Budget, TooLarge, mark_of

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
