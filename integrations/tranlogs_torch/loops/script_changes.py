"""What a script has changed between `recover()` and its loop, to be kept where the state is set to another boundary."""

from __future__ import annotations

from typing import Any

import torch

from .run_parts import RunParts


class ScriptChanges:
    """Hyper-parameters and weights that the script has set since the recovery; the weights are copied.

    Args:
        parts: of the run.
    """

    def __init__(self, parts: RunParts) -> None:
        self._state = parts.state
        self._hyper: list[tuple[str, int, str, Any]] = parts.auxiliary.changed_hyper()
        written = [name for name in parts.writes.parameters(parts.journal.step) if name in self._state.parameters]
        self._weights = {name: self._state.parameters[name].detach().clone() for name in written}

    def apply(self) -> None:
        """Set them again."""
        state = self._state
        for which, i, key, value in self._hyper:
            for optimizer in {id(one): one for one in (state.optimizers[which], state.outer(which))}.values():
                optimizer.param_groups[i][key] = value
        with torch.no_grad():
            for name, value in self._weights.items():
                state.parameters[name].copy_(value)
