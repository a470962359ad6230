"""Variables of the script's loops that start over at each start: which values and objects of PyTorch count."""

from __future__ import annotations

from typing import Any

import torch

from tranlogs.training import LoopState, RecoveryReport, UnkeptVariables

from ..state import naming
from .run_parts import RunParts


def make_unkept_variables(parts: RunParts) -> UnkeptVariables:
    """Return what names the variables that a run does not keep."""

    def is_value(value: Any) -> bool:
        """Return True for a tensor that is no parameter and no buffer."""
        if not isinstance(value, torch.Tensor) or isinstance(value, torch.nn.Parameter):
            return False
        kept = [*naming.named_parameters(parts.modules).values(), *naming.named_buffers(parts.modules).values()]
        kept += [p for hooks in parts.hooks.values() for p in hooks.parameters()]
        return not any(value is one for one in kept)

    def is_kept(value: Any) -> bool:
        """Return True for what is tracked, and for the optimizer and the report, which tell where the run stands."""
        if isinstance(value, (RecoveryReport, torch.optim.Optimizer)):
            return True
        tracked = list(parts.auxiliary.tracked.values())
        tracked += [thing for state in tracked if isinstance(state, LoopState) for thing in state.objects]
        kept = [*tracked, *(position.loader for position in parts.auxiliary.loaders.values())]
        return any(value is one for one in kept)

    return UnkeptVariables(parts.report, is_value, is_kept)
