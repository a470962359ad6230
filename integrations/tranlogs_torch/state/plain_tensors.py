"""Exchange of optimizers' parameters for other tensors, for a while or for good.

Steps on DTensors are redone on the plain parts that this process holds: the same bits, without meshes and other processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..sharding.shards import is_alike, like
from ..tensors.arrays import is_dtensor, local
from .named_tensors import NamedTensors

Convert = Callable[[str, str, Any], Any]  # a parameter's name, a key of its state, the value


@contextmanager
def unwrapped(named: NamedTensors) -> Iterator[None]:
    """Replace DTensors by the plain tensors in them for a while, with gradients and optimizer state."""
    wrapped = {name: p for name, p in named.parameters.items() if is_dtensor(p)}
    if not wrapped:
        yield
        return
    known: dict[tuple[str, str], torch.Tensor] = {}  # DTensors of the optimizers' state

    def unwrap(name: str, key: str, value: Any) -> Any:
        if is_dtensor(value):
            known[name, key] = value
            return local(value)
        return value

    def wrap(name: str, key: str, value: Any) -> Any:
        before = known.get((name, key))
        if before is not None and local(before) is value:
            return before
        return like(wrapped[name], value) if torch.is_tensor(value) and is_alike(key, value, wrapped[name]) else value

    exchange(named, {name: _plain(p) for name, p in wrapped.items()}, unwrap)
    try:
        yield
    finally:
        for name, parameter in wrapped.items():
            stand_in = named.parameters[name]
            if is_dtensor(parameter) and local(parameter).data_ptr() != stand_in.data_ptr():  # it was given other memory
                with torch.no_grad():
                    local(parameter).copy_(stand_in)
            gradient = stand_in.grad
            parameter.grad = None if gradient is None else like(parameter, gradient)
        exchange(named, wrapped, wrap)


def _plain(parameter: torch.Tensor) -> nn.Parameter:
    made = nn.Parameter(local(parameter).detach(), requires_grad=parameter.requires_grad)
    wanted = getattr(parameter, "grad_dtype", None)
    if wanted not in (None, parameter.dtype):
        made.grad_dtype = wanted
    made.grad = None if parameter.grad is None else local(parameter.grad)
    return made


def exchange(named: NamedTensors, others: Mapping[str, torch.Tensor], convert: Convert) -> None:
    """Replace parameters, by name, by other tensors, in their optimizers, too."""
    names = {id(named.parameters[name]): name for name in others}
    ids = {id(named.parameters[name]): id(other) for name, other in others.items()}
    for optimizer in named.optimizers.values():
        for group in optimizer.param_groups:
            group["params"][:] = [others[names[id(p)]] if id(p) in names else p for p in group["params"]]
        held: list[tuple[Any, Any]] = list(optimizer.state.items())
        optimizer.state.clear()
        for parameter, kept in held:
            name = names.get(id(parameter))
            if name is None or not isinstance(kept, dict):
                optimizer.state[parameter] = kept
            else:
                optimizer.state[others[name]] = {key: convert(name, key, value) for key, value in kept.items()}
    for groups in named.logged_members.values():
        groups[:] = [[ids.get(number, number) for number in group] for group in groups]
    named.use({name: others.get(name, p) for name, p in named.parameters.items()}, len(named.fingerprint.tensors))
