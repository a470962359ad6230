"""How much a run writes: sizes of an optimizer's state and records before its first step, and the forecast at the start."""

from __future__ import annotations

import torch

from tranlogs.base.config import fitting_segment_bytes
from tranlogs.training import ExpectedWrites, forecast_inputs, forecast_trial, forecast_writes

from ..capture.optimizer_hooks import OptimizerHooks
from ..tensors.arrays import local
from .run_parts import RunParts

_REDUCED = {None: 1.0, "bf16": 0.5, "int8": 0.25 + 1 / 256}  # of the bytes of float32 gradients


def forecast(parts: RunParts) -> str:
    """Return how much this process writes in a fresh run, and when its checkpoints come."""
    if not parts.rung.logs_tensors:
        return forecast_inputs(parts.settings.policy)
    trained = {name: sum(local(p).nbytes for p in hooks.parameters() if p.requires_grad) for name, hooks in parts.hooks.items()}
    state_bytes = parts.state.nbytes() + sum(count_kept(parts.hooks[name].inner) * n for name, n in trained.items())
    logged = {name: _share_logged(hooks) for name, hooks in parts.hooks.items()}
    step_bytes = max(round(parts.coordinator.portion * sum(logged[name] * nbytes for name, nbytes in trained.items())), 1)
    settings = parts.settings
    if parts.rung.is_measured and parts.rung.overhead is not None:
        return forecast_trial(settings.policy, step_bytes, parts.rung.overhead)
    writes = ExpectedWrites(step_bytes, state_bytes, parts.resources.config.segment_bytes)
    return forecast_writes(settings.policy, settings.run, writes, settings.retention)


def _share_logged(hooks: OptimizerHooks) -> float:
    return count_logged(hooks.inner) if hooks.log == "weights" else _REDUCED[hooks.reduction]


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
