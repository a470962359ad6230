"""Values that attributes hold, as plain values that can be stored without pickle, and back.

A container or an object becomes a tuple that begins with its kind. What is restored is written into the object that is there,
where one is: others may refer to it.
"""

from __future__ import annotations

import enum
import marshal
import random
import types
from collections import OrderedDict, deque
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
import xxhash
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Space
from gymnasium.wrappers.utils import RunningMeanStd as GymnasiumMeanStd
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

PLAIN = (bool, int, float, complex, str, bytes, types.NoneType)
_CONSTANT: tuple[Any, ...] = (
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    types.FunctionType,
    types.MethodType,
    EnvSpec,
    enum.Enum,
)
_CONSTANT += (PurePath, np.dtype, np.ufunc, torch.device, torch.dtype)
_WITH_ATTRIBUTES = (
    RunningMeanStd,
    GymnasiumMeanStd,
    StackedObservations,
    ActionNoise,
)  # objects whose state is their attributes
_NUMBERS = {np.dtype(kind) for kind in "?bhilqBHILQefdFD"}  # of arrays
_BYTES_MAX = 8 << 20  # of one array
_TABLE_BYTES_MIN = 16 << 10  # from which on a value that stays as it was built is not stored


class Unstorable(Exception):
    """A value cannot be stored; the message says where it is, and what."""


def is_constant(value: Any) -> bool:
    """Return True for functions, classes and the like, which nothing changes."""
    return isinstance(value, _CONSTANT)


def is_scalar(value: Any) -> bool:
    """Return True for a number, a string, bytes or None."""
    return type(value) in PLAIN or (isinstance(value, np.generic) and value.dtype in _NUMBERS)


def stored(value: Any, path: str) -> Any:
    """Return a copy that can be stored.

    Raises:
        Unstorable: it holds something that cannot be stored.
    """
    if is_scalar(value):
        return value
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return _stored_array(value, path)
    if type(value) in (list, tuple, set, frozenset):
        return type(value).__name__, [stored(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, deque):
        return "deque", value.maxlen, [stored(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict):
        items = [(stored(key, f"{path}.keys()"), stored(item, f"{path}[{key!r}]")) for key, item in value.items()]
        return "OrderedDict" if isinstance(value, OrderedDict) else "dict", items
    if isinstance(value, np.random.Generator):
        return "generator", dict(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return "random state", dict(value.get_state(legacy=False))
    if isinstance(value, random.Random):
        return "random", list(value.getstate()[1]), value.getstate()[2]
    if isinstance(value, torch.Generator):
        return "torch", value.get_state()
    if isinstance(value, Space):
        return "space", [stored(generator, path) for generator in _generators_of(value)]
    if isinstance(value, _WITH_ATTRIBUTES):
        return "object", stored_attributes(value, path)
    if is_constant(value):
        return ("constant",)
    raise Unstorable(f"{path} is a {type(value).__module__}.{type(value).__qualname__}")


def _stored_array(value: Any, path: str) -> Any:
    if isinstance(value, torch.Tensor):
        found: Any = value.detach().cpu().clone()
    elif value.dtype not in _NUMBERS:
        raise Unstorable(f"{path} is an array of {value.dtype}")
    else:
        found = value.copy()
    if found.nbytes > _BYTES_MAX:
        raise Unstorable(f"{path} is an array of {found.nbytes >> 20} MiB, too large to be stored at each boundary")
    return found


def table_digest(value: Any) -> int | None:
    """Return a digest of a large array, or of a large container of plain values; None for anything else."""
    if isinstance(value, np.ndarray) and value.dtype in _NUMBERS:
        if value.nbytes < _TABLE_BYTES_MIN:
            return None
        head = f"{value.dtype.str} {value.shape} ".encode()
        return xxhash.xxh3_64_intdigest(head + np.ascontiguousarray(value).tobytes()) >> 1
    if type(value) not in (list, tuple, dict):
        return None
    try:
        raw = marshal.dumps(value, 2)  # of version 2, in which equal values have equal bytes
    except ValueError:
        return None
    return xxhash.xxh3_64_intdigest(raw) >> 1 if len(raw) >= _TABLE_BYTES_MIN else None


def table_digests(owner: Any) -> dict[str, int]:
    """Return the digests of attributes of an object that are large tables, by name."""
    return {name: digest for name, value in vars(owner).items() if (digest := table_digest(value)) is not None}


def stored_attributes(
    owner: Any, path: str, skipped: frozenset[str] = frozenset(), built: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return the attributes of an object. One that is the same object as an earlier one refers to it.

    Args:
        owner: the object.
        path: of it in messages.
        skipped: names of attributes that are left out.
        built: digests of tables; of a table that is as it was built, the digest is stored.

    Raises:
        Unstorable: one of them cannot be stored.
    """
    found: dict[str, Any] = {}
    names: dict[int, str] = {}
    for name, value in vars(owner).items():
        if name in skipped:
            continue
        if type(value) not in PLAIN and id(value) in names:
            found[name] = "same", names[id(value)]
        elif built and name in built and table_digest(value) == built[name]:
            found[name] = "table", built[name]
        else:
            found[name] = stored(value, f"{path}.{name}")
        names.setdefault(id(value), name)
    return found


def restored(old: Any, new: Any) -> Any:
    """Return a stored value: `old`, where that can be set to it, else a new one."""
    if not isinstance(new, tuple):
        return _restored_array(old, new) if isinstance(new, (np.ndarray, torch.Tensor)) else new
    return _RESTORERS[new[0]](old, *new[1:])


def restore_attributes(owner: Any, recorded: dict[str, Any], skipped: frozenset[str] = frozenset()) -> None:
    """Set the attributes of an object to recorded ones. Others that could be stored, and were not there, are deleted."""
    own = vars(owner)
    for name in [
        name for name, value in own.items() if name not in recorded and name not in skipped and not is_constant(value)
    ]:
        delattr(owner, name)
    for name, value in recorded.items():
        if isinstance(value, tuple) and value[0] == "same":
            setattr(owner, name, own[value[1]])
        elif not (isinstance(value, tuple) and value[0] == "constant"):
            setattr(owner, name, restored(own.get(name), value))


def _restored_array(old: Any, new: Any) -> Any:
    if type(old) is type(new) and old.shape == new.shape and old.dtype == new.dtype:
        if isinstance(old, torch.Tensor):
            with torch.no_grad():
                return old.copy_(new)
        if old.flags.writeable:
            old[...] = new
            return old
    return new.clone() if isinstance(new, torch.Tensor) else new.copy()


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
    for space, generator in zip(_spaces_in(old) if isinstance(old, Space) else (), generators, strict=False):
        space._np_random = restored(space._np_random, generator)
    return old


def _restored_object(old: Any, attributes: dict[str, Any]) -> Any:
    if isinstance(old, _WITH_ATTRIBUTES):
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
    "object": _restored_object,
    "constant": _restored_constant,
    "table": _restored_constant,
}


def _spaces_in(space: Space[Any]) -> list[Any]:
    """Return a space and those that it is made of."""
    found: list[Any] = [space]
    for value in vars(space).values():
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        for part in parts:
            if isinstance(part, Space):
                found += _spaces_in(part)
    return found


def _generators_of(space: Space[Any]) -> list[Any]:
    return [part._np_random for part in _spaces_in(space)]
