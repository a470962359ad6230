"""The state as it was at one moment, to be set back: parameters and buffers copied to the host, the rest as it is logged."""

from __future__ import annotations

import torch

from tranlogs.records import tree

from ..tensors import arrays
from ..tensors.placement import in_memory
from . import naming
from .auxiliary.auxiliary import Auxiliary
from .state import TorchState


class StateBackup:
    """Parameters, buffers and auxiliary state; not the optimizers' own state, and not the positions in the data.

    Args:
        state: the run's parameters and modules.
        auxiliary: what else there is.
    """

    def __init__(self, state: TorchState, auxiliary: Auxiliary) -> None:
        self._state, self._auxiliary = state, auxiliary
        self._parameters = {name: _copy(p) for name, p in state.parameters.items()}
        self._buffers = {name: _copy(b) for name, b in naming.named_buffers(state.modules).items()}
        body = {key: value for key, value in auxiliary.read().items() if key not in ("data", "buffers")}
        self._body = tree.encode(body, adapt=arrays.adapt)

    @torch.no_grad()
    def set_back(self) -> None:
        """Make the state again what it was."""
        for name, value in self._parameters.items():
            parameter = self._state.parameters[name]
            held = in_memory(parameter)
            if not torch.equal(held.detach().cpu(), value):
                held.data.copy_(value)
        naming.set_buffers(self._state.modules, self._buffers)
        body = tree.decode(self._body, make_array=arrays.make_array, make_extension=arrays.make_extension)
        self._auxiliary.set_back(body)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return in_memory(tensor).detach().to("cpu", copy=True)
