"""Tracked objects that hold the state of the script's loop: where its data come from, and what it keeps between two turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from .generators import GENERATORS


def is_scheduler(thing: Any) -> bool:
    """Return True for a learning-rate scheduler: torch's, accelerate's around it, and others by their name (timm's)."""
    thing = getattr(thing, "scheduler", thing)
    if isinstance(thing, LRScheduler) or hasattr(thing, "last_epoch"):
        return True
    is_named = any("sched" in f"{kind.__module__}.{kind.__name__}".lower() for kind in type(thing).__mro__)
    return is_named and isinstance(getattr(thing, "optimizer", None), Optimizer)


def holds_loop_state(thing: Any, weights: Iterable[torch.Tensor], others: Iterable[torch.Tensor] = ()) -> bool:
    """Return True if a tracked object may hold what the script's turns depend on.

    Schedulers, scalers, modules, optimizers, averages of the weights and random generators are no such objects: they tell
    nothing of a batch that waits in a variable, or of an environment.

    Args:
        thing: tracked, with state_dict.
        weights: parameters that are trained.
        others: tensors that an average of a model may hold besides: its buffers, and frozen parameters.
    """
    if isinstance(thing, (torch.nn.Module, Optimizer, torch.amp.GradScaler, *GENERATORS)) or is_scheduler(thing):
        return False
    if not getattr(thing, "holds_loop_state", True):  # a part of TranLogs
        return False
    return not _is_average(thing.state_dict(), weights, others)


def _is_average(content: Any, weights: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> bool:
    """Return True if the tensors of a state are floating-point, have the shapes of the weights, and are as many."""
    found = [tensor for tensor in _tensors(content) if tensor.dim()]
    shapes, wanted = Counter(tensor.shape for tensor in found), Counter(weight.shape for weight in weights if weight.dim())
    known = wanted.keys() | {other.shape for other in others}
    return bool(found) and wanted <= shapes and shapes.keys() <= known and all(t.is_floating_point() for t in found)


def _tensors(content: Any) -> Iterator[torch.Tensor]:
    if isinstance(content, torch.Tensor):
        yield content
    elif isinstance(content, dict):
        for item in content.values():
            yield from _tensors(item)
    elif isinstance(content, (list, tuple)):
        for item in content:
            yield from _tensors(item)
