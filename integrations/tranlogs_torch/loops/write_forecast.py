"""A forecast of how much a fresh run writes, for its report at the start."""

from __future__ import annotations

from tranlogs.training import ExpectedWrites, forecast_inputs, forecast_writes

from ..capture.optimizer_hooks import OptimizerHooks
from ..tensors.placement import local
from .log_sizes import count_kept, count_logged
from .run_parts import RunParts

_REDUCED = {None: 1.0, "bf16": 0.5, "int8": 0.25 + 1 / 256}  # of the bytes of float32 gradients


def forecast(parts: RunParts) -> str:
    """Return how much a fresh run writes; empty for several processes, which may divide the log."""
    if not parts.coordinator.is_single:
        return ""
    if not parts.rung.logs_tensors:
        return forecast_inputs(parts.settings.policy)
    trained = {name: sum(local(p).nbytes for p in hooks.parameters() if p.requires_grad) for name, hooks in parts.hooks.items()}
    state_bytes = parts.state.nbytes() + sum(count_kept(parts.hooks[name].inner) * n for name, n in trained.items())
    logged = {name: _share_logged(hooks) for name, hooks in parts.hooks.items()}
    step_bytes = max(round(sum(logged[name] * nbytes for name, nbytes in trained.items())), 1)
    settings = parts.settings
    writes = ExpectedWrites(step_bytes, state_bytes, parts.resources.config.segment_bytes)
    return parts.rung.qualify(forecast_writes(settings.policy, settings.run, writes, settings.retention))


def _share_logged(hooks: OptimizerHooks) -> float:
    return count_logged(hooks.inner) if hooks.log == "weights" else _REDUCED[hooks.reduction]
