"""Modules under FSDP: their sharded parameters while whole ones are registered in their place, and gradients not yet summed.

Private names of torch that this module uses: `FSDPModule._get_fsdp_state()._fsdp_param_groups`, of its groups `fsdp_params`,
of these `_module_info`, `sharded_param`, `sharded_state`, `_unsharded_param`, `mp_policy`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

Modules = Mapping[str, nn.Module]


def _fully_sharded(modules: Modules) -> list[Any]:
    """Return the modules to which `fully_shard` was applied."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # who has not imported it has none
    if fsdp is None or not hasattr(fsdp, "FSDPModule"):
        return []
    found = (m for root in modules.values() for m in root.modules() if isinstance(m, fsdp.FSDPModule))
    return list({id(m): m for m in found}.values())


def _groups(modules: Modules) -> Iterator[Any]:
    for module in _fully_sharded(modules):
        yield from module._get_fsdp_state()._fsdp_param_groups


def reshard(modules: Modules) -> None:
    """Register the sharded parameters, whose values may differ from what was gathered before."""
    for module in _fully_sharded(modules):
        module.reshard()


def sharded_for(modules: Modules) -> dict[int, nn.Parameter]:
    """Return the sharded parameter for each whole one (by id) that replaces it until the next backward pass."""
    return {
        id(getattr(p._module_info.module, p._module_info.param_name)): p.sharded_param
        for group in _groups(modules)
        for p in group.fsdp_params
        if p.sharded_state.name != "SHARDED"
    }


def are_accumulating(modules: Modules) -> bool:
    """Return True if gradients wait on this process that were not summed over all (`set_requires_gradient_sync(False)`)."""
    leaves = (getattr(p, "_unsharded_param", None) for group in _groups(modules) for p in group.fsdp_params)
    if any(leaf is not None and leaf.grad is not None for leaf in leaves):
        return True
    return any(group._partial_reduce_output is not None for group in _groups(modules))


def describe(modules: Modules) -> list[str]:
    """Return the dtypes in which gradients are computed and summed, each once."""
    policies = [p.mp_policy for group in _groups(modules) for p in group.fsdp_params]
    return sorted({f"{_dtype(one.param_dtype)}/{_dtype(one.reduce_dtype)}" for one in policies})


def _dtype(dtype: Any) -> str:
    return "as built" if dtype is None else str(dtype).removeprefix("torch.")
