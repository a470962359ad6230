"""Values that attributes hold, as plain values that can be stored without pickle; restored_values.py has the way back.

A container or an object becomes a tuple that begins with its kind.
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
WITH_ATTRIBUTES = (
    RunningMeanStd,
    GymnasiumMeanStd,
    StackedObservations,
    ActionNoise,
)  # objects whose state is their attributes
_NUMBERS = {np.dtype(kind) for kind in "?bhilqBHILQefdFD"}  # of arrays
_BYTES_MAX = 8 << 20  # of one array
NO_LIMIT = 1 << 62
_TABLE_BYTES_MIN = 4 << 10  # from which on a value that stays as it was built is not stored


class Unstorable(Exception):
    """A value cannot be stored; the message names its place and its type."""


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
    if isinstance(value, WITH_ATTRIBUTES):
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


def spaces_in(space: Space[Any]) -> list[Any]:
    """Return a space and those that it is made of."""
    found: list[Any] = [space]
    for value in vars(space).values():
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        for part in parts:
            if isinstance(part, Space):
                found += spaces_in(part)
    return found


def _generators_of(space: Space[Any]) -> list[Any]:
    return [part._np_random for part in spaces_in(space)]
