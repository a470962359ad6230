"""Modules under the wrapper class FullyShardedDataParallel: each has one flat parameter, of which a rank holds a range.

With `use_orig_params=True` a module's parameters are one-dimensional views of that range; those that lie outside are empty.
While the module computes, other tensors stand in their place.

Private names of torch that this module uses: `FullyShardedDataParallel._handle`, `_inter_node_pg`, `mixed_precision`, of the
handle `flat_param`, `uses_sharded_strategy`, `_use_orig_params`, `_offload_params`, `_keep_low_precision_grads`,
`process_group`, `reshard`, `post_reshard`, `_get_flat_param_offsets`, and of the flat parameter `_params`, `_param_infos`,
`_shapes`, `_shard_param_infos`, `_is_padding_mask`, `_unpadded_unsharded_size`, `_full_param_padded`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tranlogs.base.errors import UsageError
from tranlogs.base.types import Piece

from ..tensors.placement import NOTHING, Place, ShardLayout, note_layout

Modules = Mapping[str, nn.Module]


def _wrappers(modules: Modules) -> list[Any]:
    """Return the wrapped modules that have parameters of their own."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # who has not imported it has none
    kind = getattr(fsdp, "FullyShardedDataParallel", None)
    if kind is None:
        return []
    found = {id(m): m for root in modules.values() for m in root.modules() if isinstance(m, kind)}
    return [m for m in found.values() if m._handle is not None]


def note_places(modules: Modules) -> None:
    """Note the range of each parameter.

    Raises:
        UsageError: a module is wrapped in a way that hides the places of its parameters.
    """
    for wrapper in _wrappers(modules):
        handle = wrapper._handle
        _demand_known(handle)
        mesh = _mesh(wrapper)
        if math.prod(mesh["shape"]) > 1:
            _note(handle, mesh)


def _demand_known(handle: Any) -> None:
    name = "FullyShardedDataParallel"
    if not handle._use_orig_params:
        raise UsageError(
            f"{name} has put the parameters into one flat parameter, from which a log cannot tell them apart. Set "
            f"use_orig_params=True: {name}(model, use_orig_params=True), or use torch.distributed.fsdp.fully_shard(model)"
        )
    if handle._offload_params:
        raise UsageError(f"{name}(cpu_offload=...) is not logged: leave it out, or use fully_shard(model)")
    if handle._keep_low_precision_grads:
        raise UsageError(f"{name} with keep_low_precision_grads=True is not logged: gradients must have the parameters' dtype")


def _mesh(wrapper: Any) -> dict[str, Any]:
    from torch.distributed import get_process_group_ranks, get_world_size

    ranks = get_process_group_ranks(wrapper._handle.process_group)
    among = getattr(wrapper, "_inter_node_pg", None)
    if among is None:
        return {"names": [], "shape": [len(ranks)], "ranks": list(ranks)}
    replicas = get_world_size(among)
    if replicas * len(ranks) != get_world_size():
        raise UsageError("FullyShardedDataParallel with a hybrid strategy over only some of the processes is not logged")
    return {"names": ["replicate", "shard"], "shape": [replicas, len(ranks)], "ranks": list(range(get_world_size()))}


def _note(handle: Any, mesh: dict[str, Any]) -> None:
    flat = handle.flat_param
    spans = zip(handle._get_flat_param_offsets(), flat._is_padding_mask, strict=True)
    offsets = [first for (first, _), is_padding in spans if not is_padding]
    total = math.prod(flat._unpadded_unsharded_size)
    for parameter, shape, info, offset in zip(flat._params, flat._shapes, flat._shard_param_infos, offsets, strict=True):
        if not handle.uses_sharded_strategy:
            note_layout(parameter, ShardLayout(None, mesh, "Replicate()"))
            continue
        piece = Piece("flat", (info.intra_param_start_idx,), (info.numel_in_shard,)) if info.in_shard else NOTHING
        note_layout(parameter, ShardLayout(Place(tuple(shape), piece), mesh, f"Flat({offset} of {total})"))


def reshard(modules: Modules) -> None:
    """Register the sharded parameters, whose values may differ from what was gathered before."""
    for wrapper in _wrappers(modules):
        handle = wrapper._handle
        if handle.uses_sharded_strategy and hasattr(handle.flat_param, "_full_param_padded"):  # it has computed before
            handle.reshard(True)
            handle.post_reshard()


def sharded_for(modules: Modules) -> dict[int, nn.Parameter]:
    """Return the parameter for each tensor (by id) that replaces it while the module computes."""
    return {
        id(getattr(owner, name)): parameter
        for wrapper in _wrappers(modules)
        for parameter, (name, owner, _) in zip(
            wrapper._handle.flat_param._params, wrapper._handle.flat_param._param_infos, strict=True
        )
    }


def are_accumulating(modules: Modules) -> bool:
    """Return True if gradients wait on this process that were not summed over all (`no_sync`)."""
    flats = [w._handle.flat_param for w in _wrappers(modules) if w._handle.uses_sharded_strategy]
    return any(flat.grad is not None and flat.grad.shape == flat._unpadded_unsharded_size for flat in flats)


def policies(modules: Modules) -> list[Any]:
    """Return the dtypes in which gradients are computed and summed."""
    return [wrapper.mixed_precision for wrapper in _wrappers(modules) if wrapper.mixed_precision]


def total_norm(modules: Modules, parameters: Sequence[torch.Tensor], norm_type: float, foreach: bool | None) -> Any:
    """Return the norm of gradients of which some are ranges; None if none is. All processes that share one must call it."""
    wanted = set(map(id, parameters))
    held = {
        id(p): (p, w._handle.process_group)
        for w in _wrappers(modules)
        if w._handle.uses_sharded_strategy
        for p in w._handle.flat_param._params
        if id(p) in wanted
    }
    if not held:
        return None
    parts = [p.grad for p, _ in held.values() if p.grad is not None]  # in the order in which the wrapper adds them up
    whole = [p.grad for p in parameters if id(p) not in held and p.grad is not None]
    group = next(group for _, group in held.values())
    norm = _local_norm(parts, norm_type, foreach, parameters[0])
    if norm_type == math.inf:
        norm = torch.maximum(norm, _local_norm(whole, norm_type, foreach, norm)) if whole else norm
        torch.distributed.all_reduce(norm, torch.distributed.ReduceOp.MAX, group)
        return norm
    norm = norm**norm_type
    torch.distributed.all_reduce(norm, group=group)
    if whole:
        norm += _local_norm(whole, norm_type, foreach, norm) ** norm_type
    return norm ** (1.0 / norm_type)


def _local_norm(
    gradients: Sequence[torch.Tensor], norm_type: float, foreach: bool | None, beside: torch.Tensor
) -> torch.Tensor:
    norm = torch.nn.utils.get_total_norm(gradients, norm_type, foreach=foreach)
    return norm.to(beside.device, torch.float32)
