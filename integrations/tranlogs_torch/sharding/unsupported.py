"""Ways to shard a training that are refused by name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from torch import nn

from tranlogs.base.errors import UsageError


def demand_known_modules(modules: Mapping[str, nn.Module]) -> None:
    """Refuse modules under the wrapper class FullyShardedDataParallel.

    Raises:
        UsageError: there is one.
    """
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # who has not imported it has none
    kind = getattr(fsdp, "FullyShardedDataParallel", None)
    if kind is not None and any(isinstance(m, kind) for root in modules.values() for m in root.modules()):
        raise UsageError(
            "FullyShardedDataParallel is not logged: it hides each parameter in a flat one. Use its successor, "
            "torch.distributed.fsdp.fully_shard(model)"
        )


def demand_known_optimizer(optimizer: Any) -> None:
    """Refuse a ZeroRedundancyOptimizer.

    Raises:
        UsageError: it is one.
    """
    known: Any = sys.modules.get("torch.distributed.optim")
    kind = getattr(known, "ZeroRedundancyOptimizer", None)
    if kind is not None and isinstance(optimizer, kind):
        raise UsageError(
            "ZeroRedundancyOptimizer is not logged: each rank steps only some of the parameters. Shard parameters and "
            "optimizer with torch.distributed.fsdp.fully_shard(model), or use the plain optimizer"
        )
