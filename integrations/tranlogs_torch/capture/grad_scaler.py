"""Finds the GradScaler that steps an optimizer.

One that is not tracked starts over after a crash. One that knows an optimizer by two ids unscales its gradients twice.
"""

from __future__ import annotations

import sys
from types import FrameType

import torch

from tranlogs.base.errors import UsageError

_FRAMES = 10  # between `GradScaler.step` and a hook of the optimizer


class ScalerWatch:
    """Finds the GradScaler that calls a step, among the callers of the step's hook."""

    def __init__(self) -> None:
        self.scaler: torch.amp.GradScaler | None = None

    def look(self) -> bool:
        """Return True if an enabled one is found; call it from a hook of the step until then."""
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_FRAMES):
            if frame is None:
                break
            if frame.f_code is torch.amp.GradScaler.step.__code__:
                scaler: torch.amp.GradScaler = frame.f_locals["self"]
                self.scaler = scaler if scaler.is_enabled() else None  # a disabled one only calls the step
                return self.scaler is not None
            frame = frame.f_back
        return False

    def check(self, inner: torch.optim.Optimizer, shell: torch.optim.Optimizer) -> None:
        """Refuse gradients that were unscaled under one id and are stepped under the other.

        Raises:
            UsageError: the scaler was given the wrapper once and the plain optimizer once, since its last update.
        """
        assert self.scaler is not None
        known = self.scaler._per_optimizer_states
        if id(inner) in known and id(shell) in known:
            raise UsageError(
                "the GradScaler received the LoggedOptimizer in one call and the wrapped optimizer in another (unscale_, "
                "step). It treats them as two optimizers and unscales the gradients twice. Pass the LoggedOptimizer to both "
                "calls"
            )
