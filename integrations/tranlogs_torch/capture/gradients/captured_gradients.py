"""The gradients that the log reads while the optimizer steps, and whether the step wrote to them."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ...state.extra_state import is_torchs
from ...state.fingerprint import versions


class CapturedGradients:
    """The gradients that the running step consumes.

    Attributes:
        are_kept: True if the optimizer leaves gradients as they are, so that the log may read them during the step. It is known
            of torch's own optimizers only, and becomes False once a step has written to them.
    """

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.are_kept = is_torchs(inner)
        self._gradients: list[torch.Tensor] = []
        self._versions: list[int] = []

    def capture(self, owners: Iterable[torch.Tensor]) -> None:
        """Note the gradients of these parameters, and their versions, before the step."""
        self._gradients = [p.grad for p in owners if p.grad is not None]
        self._versions = versions(self._gradients)

    def were_written(self) -> bool:
        """Return True if something wrote to the captured gradients, and forget them."""
        gradients, self._gradients = self._gradients, []
        return versions(gradients) != self._versions

    def forget(self) -> None:
        """Drop the references to the gradients."""
        self._gradients, self._versions = [], []
