"""Sizes of an optimizer's state and records, as multiples of its parameters, before it has taken a step."""

from __future__ import annotations

import torch

from tranlogs.base.config import fitting_segment_bytes

from ..tensors.placement import local

_STATE = 2  # Adam, AdamW and many others keep two tensors for each parameter.
_HISTORY_SHARE = 4  # The history of LBFGS takes a quarter of a log file, where it counts as a quarter of the usual 16 steps.


def count_kept(optimizer: torch.optim.Optimizer) -> int:
    """Return how many tensors an optimizer is going to keep for each parameter."""
    if isinstance(optimizer, torch.optim.LBFGS):  # two for each entry of its history, a direction, and a gradient
        return 2 * int(optimizer.param_groups[0]["history_size"]) + 2
    return _STATE


def count_logged(optimizer: torch.optim.Optimizer) -> int:
    """Return how many tensors for each parameter a step logs whose weights and state are logged."""
    if isinstance(optimizer, torch.optim.LBFGS):  # of its history what is new
        group = optimizer.param_groups[0]
        return 1 + 2 * min(int(group["max_iter"]), int(group["history_size"])) + 2
    return 1 + _STATE


def fit_segment(optimizer: torch.optim.Optimizer) -> int:
    """Return the size of a log file for the steps of an optimizer; one of LBFGS begins with its whole history."""
    trained = sum(local(p).nbytes for group in optimizer.param_groups for p in group["params"])
    if isinstance(optimizer, torch.optim.LBFGS):
        trained = trained * (1 + count_kept(optimizer)) // _HISTORY_SHARE
    return fitting_segment_bytes(trained)
