"""The state as it was at one moment, to be set back: parameters and buffers copied to the host, the rest as it is logged."""

from __future__ import annotations

import copy
from typing import Any

import torch

from tranlogs.records import tree

from ..tensors import arrays
from ..tensors.arrays import local
from . import naming
from .auxiliary import Auxiliary
from .extra_state import set_own
from .state import TorchState


class StateBackup:
    """Parameters, buffers and auxiliary state; not the positions in the data.

    Args:
        state: the run's parameters and modules.
        auxiliary: what else there is.
        has_optimizers: whether the state of each parameter in the optimizers is copied, too.
    """

    def __init__(self, state: TorchState, auxiliary: Auxiliary, *, has_optimizers: bool = False) -> None:
        self._state, self._auxiliary = state, auxiliary
        self._parameters = {name: _copy(p) for name, p in state.parameters.items()}
        self._buffers = {name: _copy(b) for name, b in naming.named_buffers(state.modules).items()}
        body = {key: value for key, value in auxiliary.read().items() if key not in ("data", "buffers")}
        self._optimizers = {which: _copy_states(o) for which, o in state.optimizers.items()} if has_optimizers else {}
        self._body = tree.encode(body, adapt=arrays.adapt)

    @torch.no_grad()
    def set_back(self) -> None:
        """Make the state again what it was."""
        for name, value in self._parameters.items():
            parameter = self._state.parameters[name]
            held = local(parameter)
            if not torch.equal(held.detach().cpu(), value):
                held.data.copy_(value)
        naming.set_buffers(self._state.modules, self._buffers)
        for which, states in self._optimizers.items():
            _set_states(self._state.optimizers[which], states)
        body = tree.decode(self._body, make_array=arrays.make_array, make_extension=arrays.make_extension)
        self._state.extra.write(body["extra"])
        for which, stored in body["own"].items():
            set_own(self._state.optimizers[which], stored)
        self._auxiliary.set_back(body)


def _copy_states(optimizer: torch.optim.Optimizer) -> dict[torch.Tensor, dict[str, Any]]:
    found = {}
    for parameter, values in optimizer.state.items():
        found[parameter] = {key: _copy(v) if isinstance(v, torch.Tensor) else copy.deepcopy(v) for key, v in values.items()}
    return found


def _set_states(optimizer: torch.optim.Optimizer, states: dict[torch.Tensor, dict[str, Any]]) -> None:
    for parameter in [parameter for parameter in optimizer.state if parameter not in states]:
        del optimizer.state[parameter]
    for parameter, values in states.items():
        kept: dict[str, Any] = optimizer.state[parameter]
        for key in kept.keys() - values.keys():
            del kept[key]
        for key, value in values.items():
            now = kept.get(key)
            if isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor) and local(now).shape == value.shape:
                local(now).data.copy_(value)
            else:
                kept[key] = value


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return local(tensor).detach().to("cpu", copy=True)
