"""Values that attributes hold, as plain values that can be stored without pickle, and back.

A container or an object becomes a tuple that begins with its kind. What is restored is written into the object that is there,
where one is: others may refer to it.
"""

from __future__ import annotations

import enum
import pickle
import random
import types
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
import xxhash
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Space
from gymnasium.wrappers.utils import RunningMeanStd as GymnasiumMeanStd
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

from tranlogs.base.errors import UsageError
from tranlogs.records import tree

from ...tensors import arrays

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
STATEFUL = (list, dict, set, deque, Iterator, random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_READ_ELSEWHERE = (types.NoneType, types.ModuleType, type, gym.Env, VecEnv, BaseCallback, BaseAlgorithm, torch.nn.Module)
_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
_WITH_ATTRIBUTES = (
    RunningMeanStd,
    GymnasiumMeanStd,
    StackedObservations,
    ActionNoise,
)  # objects whose state is their attributes
_NUMBERS = {np.dtype(kind) for kind in "?bhilqBHILQefdFD"}  # of arrays
_BYTES_MAX = 8 << 20  # of one array
NO_LIMIT = 1 << 62
_LEFT_ALONE = ("constant", "table")
_NEVER_NEW = ("space", "object", *_LEFT_ALONE)  # kinds of which only the object that is there can be set
_TABLE_BYTES_MIN = 4 << 10  # from which on a value that stays as it was built is not stored


class Unstorable(Exception):
    """A value cannot be stored; the message says where it is, and what."""


def is_constant(value: Any) -> bool:
    """Return True for functions, classes and the like, which nothing changes. A function with a state is none."""
    return isinstance(value, _CONSTANT) and not _has_state(value)


def _has_state(function: Any) -> bool:
    """Return True for methods of objects of which nobody reads the state, and functions around a container or generator."""
    if isinstance(function, (types.BuiltinFunctionType, types.MethodType)):
        return not isinstance(function.__self__, _READ_ELSEWHERE)
    cells = getattr(function, "__closure__", None) or ()
    return any(isinstance(_content(cell), STATEFUL) for cell in cells)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def is_scalar(value: Any) -> bool:
    """Return True for a number, a string, bytes or None."""
    return type(value) in PLAIN or (isinstance(value, np.generic) and value.dtype in _NUMBERS)


def stored(value: Any, path: str, bytes_max: int = _BYTES_MAX) -> Any:
    """Return a copy that can be stored.

    Args:
        value: the value.
        path: of it in messages.
        bytes_max: size of an array at most.

    Raises:
        Unstorable: it holds something that cannot be stored.
    """
    if is_scalar(value):
        return value
    if isinstance(value, (np.bytes_, np.str_)):
        return "text", value.dtype.str, None, np.asarray(value).tobytes()
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return _stored_array(value, path, bytes_max)
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
    if isinstance(value, _CONSTANT):
        raise Unstorable(f"{path} is a function with a state ({value.__qualname__})")
    raise Unstorable(f"{path} is a {type(value).__module__}.{type(value).__qualname__}")


def _stored_array(value: Any, path: str, bytes_max: int) -> Any:
    if isinstance(value, torch.Tensor):
        found: Any = value.detach().cpu().clone()
    elif value.dtype.kind in "SU":
        return "text", value.dtype.str, list(value.shape), value.tobytes()
    elif value.dtype not in _NUMBERS:
        raise Unstorable(f"{path} is an array of {value.dtype}")
    else:
        found = value.copy()
    if found.nbytes > bytes_max:
        raise Unstorable(f"{path} is an array of {found.nbytes >> 20} MiB, too large to be stored at each boundary")
    return found


class Table(NamedTuple):
    """A large array, or a large container, as an environment has built it.

    Attributes:
        probe: by which a change is noticed in this process.
        digest: the same in each process.
    """

    probe: int
    digest: int


def tables(owner: Any, path: str) -> dict[str, Table]:
    """Return the attributes of an object that are large, by name."""
    return {
        name: Table(probe, digest(tree.encode(stored(value, f"{path}.{name}", NO_LIMIT), adapt=arrays.adapt)))
        for name, value in vars(owner).items()
        if (probe := _probe(value)) is not None
    }


def _probe(value: Any) -> int | None:
    """Return a digest of a value, or None if it is not large. Nothing reads the pickled bytes."""
    if isinstance(value, np.ndarray) and value.dtype in _NUMBERS:
        return digest(np.ascontiguousarray(value).tobytes()) if value.nbytes >= _TABLE_BYTES_MIN else None
    if type(value) not in (list, tuple, dict) or not value:
        return None
    try:
        raw = pickle.dumps(value)
    except Exception:  # whatever an object in it raises
        return None
    return digest(raw) if len(raw) >= _TABLE_BYTES_MIN else None


def digest(raw: bytes) -> int:
    return xxhash.xxh3_64_intdigest(raw) >> 1


def stored_attributes(
    owner: Any, path: str, skipped: frozenset[str] = frozenset(), built: Mapping[str, Table] | None = None
) -> dict[str, Any]:
    """Return the attributes of an object. One that is the same object as an earlier one refers to it.

    Args:
        owner: the object.
        path: of it in messages.
        skipped: names of attributes that are left out.
        built: tables; of one that is as it was built, the digest is stored.

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
        elif built and name in built and _probe(value) == built[name].probe:
            found[name] = "table", built[name].digest
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
        raise UsageError(f"a random generator of the kind {kind!r} cannot be restored: numpy has {', '.join(_BIT_GENERATORS)}")
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
    "text": _restored_text,
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
