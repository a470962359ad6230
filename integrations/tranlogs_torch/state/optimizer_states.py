"""The state and the parameter groups of a run's optimizers: read for the log, and set as recorded."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from tranlogs.base.errors import UsageError
from tranlogs.base.types import AnyArray
from tranlogs.records import Tensor

from ..sharding.shards import array_of, is_alike
from ..tensors.arrays import is_dtensor, write_or_make
from .group_values import Groups
from .named_tensors import NamedTensors

Convert = Callable[[torch.Tensor], AnyArray]


def read_state(named: NamedTensors, which: str, convert: Convert) -> tuple[list[Tensor], dict[str, Any]]:
    """Return the tensors of an optimizer's state by name, and the rest as a tree {parameter: [(key, value or None)]}."""
    tensors: list[Tensor] = []
    rest: dict[str, Any] = {}
    others = []  # an optimizer may keep state under keys of its own
    parameter: Any
    for parameter, state in _state_in_order(named.optimizers[which]):
        if not isinstance(parameter, torch.Tensor):
            others.append((parameter, state, ""))
            continue
        name = named.name_of.get(id(parameter))
        if name is None:  # the optimizer no longer has this parameter
            continue
        items = []
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                tensors.append((f"state/{which}/{name}/{key}", _state_array(which, name, key, value, parameter, convert)))
                items.append((key, None, value.device.type))
            else:
                items.append((key, value, ""))
        rest[name] = items
    if others:
        rest[""] = others
    return tensors, rest


def _state_in_order(optimizer: torch.optim.Optimizer) -> list[tuple[Any, Any]]:
    """Return an optimizer's state in the order of its groups. The order of creation depends on how steps are redone."""
    members = itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups)
    places = {id(parameter): i for i, parameter in enumerate(members)}
    return sorted(optimizer.state.items(), key=lambda item: places.get(id(item[0]), len(places)))


def _state_array(which: str, name: str, key: str, value: torch.Tensor, parameter: torch.Tensor, convert: Convert) -> AnyArray:
    if is_alike(key, value, parameter):
        return array_of(value, parameter, convert)
    if is_dtensor(value):
        raise UsageError(f"optimizer {which!r} shards {key} of {name} differently from the parameter, so it is not stored")
    return convert(value)


def write_state(named: NamedTensors, which: str, rest: dict[str, Any], read: Callable[[str, str], AnyArray | None]) -> None:
    """Set an optimizer's state. Tensors are written into the existing ones where they fit; keys take the recorded order.

    Args:
        named: the parameters and optimizers.
        which: name of the optimizer.
        rest: the tree that `read_state` returned.
        read: returns the tensor of a parameter and a key.
    """
    optimizer = named.optimizers[which]
    wanted = {id(named.parameters[name]) for name in rest if name}
    for parameter in [p for p in optimizer.state if id(p) not in wanted]:
        del optimizer.state[parameter]
    optimizer.state.update({key: value for key, value, _ in rest.get("", ())})
    for name, items in rest.items():
        if not name:
            continue
        parameter = named.parameters[name]
        old = optimizer.state.get(parameter, {})
        fresh = {}
        for key, value, device in items:
            if device:
                array = read(name, key)
                assert array is not None
                where = parameter.device if parameter.device.type == device else torch.device(device)
                fresh[key] = write_or_make(old.get(key), array, where)
            else:
                fresh[key] = value
        if isinstance(old, dict) and parameter in optimizer.state:
            old.clear()
            old.update(fresh)
        else:
            optimizer.state[parameter] = fresh


def write_groups(named: NamedTensors, which: str, names: list[list[str]], groups: Groups) -> None:
    """Give an optimizer the recorded parameters and values of groups. Groups after the recorded ones stay."""
    optimizer = named.optimizers[which]
    for i, members in enumerate(names):
        parameters = [named.parameters[name] for name in members]
        if i == len(optimizer.param_groups):
            optimizer.add_param_group({"params": parameters, **groups[i], **_param_names(optimizer, members)})
        elif [id(p) for p in optimizer.param_groups[i]["params"]] != [id(p) for p in parameters]:
            optimizer.param_groups[i].update(params=parameters, **_param_names(optimizer, members))
    named.logged_members[which] = named.group_members(which)[: len(names)]
    write_hyper(named, which, groups)


def _param_names(optimizer: torch.optim.Optimizer, names: list[str]) -> dict[str, Any]:
    """Return the entry that a group needs in addition if the optimizer was made of named parameters."""
    return {"param_names": list(names)} if "param_names" in optimizer.param_groups[0] else {}


def write_hyper(named: NamedTensors, which: str, groups: Groups) -> None:
    """Set the values of parameter groups in place. Tensors are set by `copy_`, since schedulers hold them."""
    for group, recorded in zip(named.optimizers[which].param_groups, groups, strict=False):
        for key, value in recorded.items():
            old = group.get(key)
            if isinstance(old, torch.Tensor) and isinstance(value, torch.Tensor) and old.shape == value.shape:
                old.copy_(value)
            elif isinstance(value, tuple) and isinstance(old, tuple) and any(isinstance(v, torch.Tensor) for v in old):
                for a, b in zip(old, value, strict=True):
                    a.copy_(b)
            else:
                group[key] = value
