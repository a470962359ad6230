"""Values of attributes from stored ones (values.py).

What is restored is written into the object that is there, where one is: others may refer to it.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Space

from tranlogs.base.errors import UsageError
from tranlogs.records import tree

from ...tensors import arrays
from .values import NO_LIMIT, WITH_ATTRIBUTES, Unstorable, is_constant, spaces_in, stored

_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
_LEFT_ALONE = ("constant", "table")
_NEVER_NEW = ("space", "object", *_LEFT_ALONE)  # kinds of which only the object that is there can be set


def restored(old: Any, new: Any) -> Any:
    """Return a stored value: `old`, where that can be set to it, else a new one."""
    if not isinstance(new, tuple):
        return _restored_array(old, new) if isinstance(new, (np.ndarray, torch.Tensor)) else new
    return _RESTORERS[new[0]](old, *new[1:])


def restore_attributes(owner: Any, recorded: dict[str, Any], skipped: frozenset[str] = frozenset()) -> None:
    """Set the attributes of an object to recorded ones. Others that could be stored, and were not there, are deleted.

    Arrays and containers are written to in place, since others may refer to them. Where two attributes are the same object
    that were not the same when they were stored, one of them becomes an object of its own.
    """
    own = vars(owner)
    for name in [
        name for name, value in own.items() if name not in recorded and name not in skipped and not is_constant(value)
    ]:
        delattr(owner, name)
    used = set[int]()
    for name, value in recorded.items():
        if _kind_of(value) not in ("same", *_LEFT_ALONE):
            old = own.get(name)
            is_used = id(old) in used and _kind_of(value) not in _NEVER_NEW
            setattr(owner, name, restored(None if is_used else old, value))
            used.add(id(own[name]))
    for name, value in recorded.items():
        if _kind_of(value) not in ("same", *_NEVER_NEW) and not _is_equal(own[name], value):  # something else was in its memory
            setattr(owner, name, restored(None, value))
    for name, value in recorded.items():
        if _kind_of(value) == "same":
            setattr(owner, name, own[value[1]])


def _kind_of(value: Any) -> str:
    return str(value[0]) if isinstance(value, tuple) else ""


def _is_equal(value: Any, recorded: Any) -> bool:
    try:
        return tree.encode(stored(value, "", NO_LIMIT), adapt=arrays.adapt) == tree.encode(recorded, adapt=arrays.adapt)
    except Unstorable:
        return False


def _restored_array(old: Any, new: Any) -> Any:
    if type(old) is type(new) and old.shape == new.shape and old.dtype == new.dtype:
        if isinstance(old, torch.Tensor):
            with torch.no_grad():
                return old.copy_(new)
        if old.flags.writeable:
            old[...] = new
            return old
    return new.clone() if isinstance(new, torch.Tensor) else new.copy()


def _restored_text(old: Any, dtype: str, shape: list[int] | None, raw: bytes) -> Any:
    found = np.frombuffer(raw, dtype)
    return found[0] if shape is None else found.reshape(shape).copy()


def _items(old: Any, new: list[Any]) -> list[Any]:
    """Return restored items of a sequence; those that are there are used."""
    there = list(old) if isinstance(old, (list, tuple, deque)) and len(old) == len(new) else [None] * len(new)
    return [restored(a, b) for a, b in zip(there, new, strict=True)]


def _restored_list(old: Any, new: list[Any]) -> Any:
    items = _items(old, new)
    if type(old) is not list:
        return items
    old[:] = items
    return old


def _restored_deque(old: Any, maxlen: int | None, new: list[Any]) -> Any:
    items = _items(old, new)
    if not isinstance(old, deque) or old.maxlen != maxlen:
        return deque(items, maxlen)
    old.clear()
    old.extend(items)
    return old


def _restored_set(old: Any, new: list[Any]) -> Any:
    items = [restored(None, item) for item in new]
    if type(old) is not set:
        return set(items)
    old.clear()
    old.update(items)
    return old


def _restored_dict(old: Any, new: list[Any]) -> Any:
    return _into_dict(old if isinstance(old, dict) else {}, new)


def _restored_ordered(old: Any, new: list[Any]) -> Any:
    return _into_dict(old if isinstance(old, OrderedDict) else OrderedDict(), new)


def _into_dict(old: Any, new: list[Any]) -> Any:
    there = dict(old)
    old.clear()
    for key, item in new:
        key = restored(None, key)
        old[key] = restored(there.get(key), item)
    return old


def _restored_generator(old: Any, state: dict[str, Any]) -> Any:
    kind = state["bit_generator"]
    if isinstance(old, np.random.Generator) and old.bit_generator.state["bit_generator"] == kind:
        old.bit_generator.state = state
        return old
    if kind not in _BIT_GENERATORS:  # it comes from a file
        raise UsageError(
            f"a random generator of the kind {kind!r} cannot be restored; supported are {', '.join(_BIT_GENERATORS)}"
        )
    made = getattr(np.random, kind)()
    made.state = state
    return np.random.Generator(made)


def _restored_random_state(old: Any, state: dict[str, Any]) -> Any:
    found = old if isinstance(old, np.random.RandomState) else np.random.RandomState()
    found.set_state(state)
    return found


def _restored_random(old: Any, state: list[int], gauss: float | None) -> Any:
    found = old if isinstance(old, random.Random) else random.Random()
    found.setstate((3, tuple(state), gauss))
    return found


def _restored_torch(old: Any, state: torch.Tensor) -> Any:
    found = old if isinstance(old, torch.Generator) else torch.Generator()
    return found.set_state(state.clone())


def _restored_space(old: Any, generators: list[Any]) -> Any:
    for space, generator in zip(spaces_in(old) if isinstance(old, Space) else (), generators, strict=False):
        space._np_random = restored(space._np_random, generator)
    return old


def _restored_object(old: Any, attributes: dict[str, Any]) -> Any:
    if isinstance(old, WITH_ATTRIBUTES):
        restore_attributes(old, attributes)
    return old


def _restored_tuple(old: Any, new: list[Any]) -> Any:
    return tuple(_items(old, new))


def _restored_frozenset(old: Any, new: list[Any]) -> Any:
    return frozenset(restored(None, item) for item in new)


def _restored_constant(old: Any, *_: Any) -> Any:
    return old


_RESTORERS: dict[str, Any] = {
    "list": _restored_list,
    "tuple": _restored_tuple,
    "set": _restored_set,
    "frozenset": _restored_frozenset,
    "deque": _restored_deque,
    "dict": _restored_dict,
    "OrderedDict": _restored_ordered,
    "generator": _restored_generator,
    "random": _restored_random,
    "random state": _restored_random_state,
    "torch": _restored_torch,
    "space": _restored_space,
    "text": _restored_text,
    "object": _restored_object,
    "constant": _restored_constant,
    "table": _restored_constant,
}
