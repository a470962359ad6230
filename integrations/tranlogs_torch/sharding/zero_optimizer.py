"""ZeroRedundancyOptimizer: each rank steps some of the parameters, by an optimizer of its own, and sends them to the others.

That own optimizer is what a rank logs, checkpoints and redoes; of parameters of other ranks it holds nothing that counts. After
a recovery each brings in the others' as torch does it after a step.

Private names of torch that this module uses: `ZeroRedundancyOptimizer.optim`, `_param_to_rank`, `_sync_params`,
`_overlap_with_ddp`, `process_group`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from tranlogs.base.errors import UsageError

from ..tensors.placement import NOTHING, Place, ShardLayout, forget, note_layout


def is_redundancy(optimizer: Any) -> bool:
    """Return True for a ZeroRedundancyOptimizer."""
    known: Any = sys.modules.get("torch.distributed.optim")  # without the import there is none
    kind = getattr(known, "ZeroRedundancyOptimizer", None)
    return kind is not None and isinstance(optimizer, kind)


def own_of(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer that takes this rank's steps: that inside a ZeroRedundancyOptimizer, or the optimizer itself."""
    own: Optimizer = optimizer.optim if is_redundancy(optimizer) else optimizer  # type: ignore[attr-defined]
    return own


def demand_known(optimizer: Any) -> None:
    """Refuse an optimizer that cannot be logged.

    Raises:
        UsageError: steps are taken amid the backward pass.
    """
    if is_redundancy(optimizer) and optimizer._overlap_with_ddp:
        raise UsageError(
            "ZeroRedundancyOptimizer(overlap_with_ddp=True) steps inside the backward pass, which is not logged. Leave that "
            "argument out"
        )


def note_places(optimizer: Any) -> None:
    """Note the owner of each parameter."""
    from torch.distributed import get_process_group_ranks

    if not is_redundancy(optimizer) or optimizer.world_size == 1:
        return
    mesh = {"names": [], "shape": [optimizer.world_size], "ranks": get_process_group_ranks(optimizer.process_group)}
    for parameter in _parameters(optimizer):
        owner = optimizer._param_to_rank[parameter]
        words = f"Owner({owner})"
        if owner == optimizer.rank:
            note_layout(parameter, ShardLayout(None, mesh, words))
        else:
            empty = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
            note_layout(parameter, ShardLayout(Place(tuple(parameter.shape), NOTHING), mesh, words, empty))


def forget_places(optimizer: Any) -> None:
    """Mark the parameters as ordinary ones again."""
    if is_redundancy(optimizer):
        for parameter in _parameters(optimizer):
            forget(parameter)


def bring_in(optimizers: Iterable[Optimizer]) -> None:
    """Get the others' parameters from them; all processes must call it."""
    for optimizer in optimizers:
        optimizer._sync_params()  # type: ignore[attr-defined]


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]
