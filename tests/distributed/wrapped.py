"""Models and optimizers of sharded.py: the wrapper class of FSDP, and ZeRO's optimizer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from tranlogs_torch.state.naming import clean


def _wrapped(model: Any, **options: Any) -> nn.Module:
    options |= {"use_orig_params": True, "device_id": torch.device("cpu")}
    model.middle = FullyShardedDataParallel(model.middle, **options)
    return FullyShardedDataParallel(model, **options)


def classic(make: Callable[[], nn.Module], world: int) -> nn.Module:
    """Whole in one process, in as many modules."""
    return _wrapped(make())


def classic_mixed(make: Callable[[], nn.Module], world: int) -> nn.Module:
    """Gathered parameters stay until the backward pass, which is computed in bfloat16."""
    policy = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return _wrapped(make(), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, mixed_precision=policy)


def replicated(make: Callable[[], nn.Module], world: int) -> nn.Module:
    """With a wrapped model that is whole on each, or in a part of them."""
    if world < 4:
        return _wrapped(make(), sharding_strategy=ShardingStrategy.NO_SHARD)
    mesh = torch.distributed.init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    return _wrapped(make(), sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh)


def coordinator(make: Callable[[], nn.Module], world: int) -> nn.Module:
    return DistributedDataParallel(make(), bucket_cap_mb=0.003)


def owned(model: nn.Module, kind: type[torch.optim.Optimizer]) -> Any:
    return ZeroRedundancyOptimizer(model.parameters(), kind, lr=1e-2)


def grouped(model: Any) -> Any:
    """In groups, with an optimizer whose steps do not go element by element."""
    inner = model.module
    own = {id(p) for p in (inner.norm.weight, inner.norm.bias, inner.out.bias)}
    found = ZeroRedundancyOptimizer(
        [p for p in model.parameters() if id(p) not in own], torch.optim.Adafactor, lr=1e-2, parameters_as_bucket_view=True
    )
    found.add_param_group({"params": [inner.norm.weight, inner.norm.bias], "lr": 2e-3})
    return found


def gathered(model: nn.Module) -> Any:
    """A context in which parameters are whole, on all processes."""
    is_wrapped = isinstance(model, FullyShardedDataParallel)
    return FullyShardedDataParallel.summon_full_params(model, writeback=False) if is_wrapped else nullcontext()


def whole_state(model: nn.Module, optimizer: Any) -> dict[str, dict[str, torch.Tensor]] | None:
    """The optimizer's state by names of whole parameters, on all processes; None for others than these kinds."""
    is_wrapped = isinstance(model, FullyShardedDataParallel)
    if not is_wrapped and not isinstance(optimizer, ZeroRedundancyOptimizer):
        return None
    state = optimizer.state if is_wrapped else optimizer.optim.state
    mine = {clean(name): dict(state[p]) for name, p in model.named_parameters() if p in state}
    told: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(told, mine)
    parts: dict[str, list[dict[str, torch.Tensor]]] = {}
    for name, kept in (item for one in told for item in one.items()):
        parts.setdefault(name, []).append(kept)
    return {
        name: {
            key: torch.cat([one[key].reshape(-1) for one in kept]) if kept[0][key].dim() else kept[0][key] for key in kept[0]
        }
        for name, kept in parts.items()
    }
