"""What a script has changed in the state of an optimizer, to be set again where that state has been recovered anew."""

from __future__ import annotations

import copy
from typing import Any

import torch

from .state_watch import StateWatch


class OptimizerChanges:
    """A copy of the values that were written since the watch has remembered the state; of all, if it cannot tell which.

    Args:
        optimizer: whose state was written.
        watch: of that state.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, watch: StateWatch) -> None:
        self._optimizer = optimizer
        written = watch.find_written()
        self._is_whole = written is None
        with torch.no_grad():
            if written is None:
                self._values: dict[Any, Any] = {where: copy.deepcopy(kept) for where, kept in optimizer.state.items()}
            else:
                self._values = {}
                for parameter, key in written:
                    self._values.setdefault(parameter, {})[key] = copy.deepcopy(optimizer.state[parameter][key])

    def apply(self) -> None:
        """Set the values again, in the tensors that the optimizer has where these are alike."""
        state = self._optimizer.state
        if self._is_whole:
            for parameter in [parameter for parameter in state if parameter not in self._values]:
                del state[parameter]
        for parameter, values in self._values.items():
            if isinstance(values, dict) and isinstance(state[parameter], dict):
                self._set(state[parameter], values)
            else:
                state[parameter] = values

    def _set(self, kept: dict[Any, Any], values: dict[Any, Any]) -> None:
        if self._is_whole:
            for key in [key for key in kept if key not in values]:
                del kept[key]
        for key, value in values.items():
            if _are_alike(kept.get(key), value):
                with torch.no_grad():
                    kept[key].copy_(value)
            else:
                kept[key] = value


def _are_alike(some: Any, other: Any) -> bool:
    return (
        type(some) is type(other)
        and isinstance(some, torch.Tensor)
        and (some.shape, some.dtype, some.device) == (other.shape, other.dtype, other.device)
    )
