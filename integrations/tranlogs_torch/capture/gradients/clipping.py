"""Gradients that `clip_grad_norm_` has logged before it clipped them: the record holds them as they were, and the norm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ...state.fingerprint import version_of

GradientVersions = list[tuple[torch.Tensor, int]]


class Clipping:
    """How the gradients of the next step were clipped.

    Attributes:
        recorded: what the record says of it: "max_norm", "norm" and "foreach"; None if the gradients are not clipped.
    """

    def __init__(self) -> None:
        self.recorded: dict[str, Any] | None = None
        self._clipped: GradientVersions = []

    def begin(self, max_norm: float, norm: torch.Tensor, foreach: bool | None) -> None:
        """Note how the logged gradients are about to be clipped."""
        self.recorded = {"max_norm": float(max_norm), "norm": norm.detach().clone(), "foreach": foreach}

    def end(self, parameters: Iterable[torch.Tensor]) -> None:
        """Note the clipped gradients, so that a later write to them is seen."""
        self._clipped = gradient_versions(parameters) if self.recorded is not None else []

    def is_current(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Return True if the gradients are those that were clipped, and nothing wrote to them since."""
        now = gradient_versions(parameters)
        return len(now) == len(self._clipped) and all(
            a is b and u == v for (a, u), (b, v) in zip(now, self._clipped, strict=True)
        )

    def forget(self) -> None:
        """Forget it: the step is over, or its gradients are logged anew."""
        self.recorded, self._clipped = None, []


def gradient_versions(parameters: Iterable[torch.Tensor]) -> GradientVersions:
    """Return each gradient with a number that changes when it is written to."""
    return [(p.grad, version_of(p.grad)) for p in parameters if p.grad is not None]
