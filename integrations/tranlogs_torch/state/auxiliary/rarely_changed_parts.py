"""Parts of a boundary that rarely change: each is encoded again only when it has changed."""

from __future__ import annotations

from typing import Any

import torch

from tranlogs.records import Fixed
from tranlogs.training import FixedCache

from ...data.rng import KeptRng
from ..group_values import GroupValues
from ..state import TorchState
from .module_walk import ModuleWalk


class SteadyParts:
    """Reads the hyper-parameters, the flags of parameters, the modes of modules and the random states of a run."""

    def __init__(self, state: TorchState) -> None:
        self._state = state
        self._walk = ModuleWalk(state.modules)
        self._values: dict[str, GroupValues] = {}  # by optimizer
        self._after, self._flags, self._training, self._rng = FixedCache(), FixedCache(), FixedCache(), KeptRng()

    def hyper(self) -> Fixed:
        """Return the settings of all parameter groups, by optimizer."""
        return self._after.of_frozen({which: self._values_of(which).now() for which in self._state.optimizers})

    def _values_of(self, which: str) -> GroupValues:
        found = self._values.get(which)
        if found is None:
            found = self._values[which] = GroupValues(self._state.optimizers[which])
        return found

    def flags(self, flags: Any) -> Fixed:
        """Return which parameters require gradients."""
        return self._flags.of(flags)

    def modules(self) -> tuple[dict[str, torch.Tensor], Fixed]:
        """Return the buffers by name, and which modules are in training mode."""
        buffers, training = self._walk.read()
        return buffers, self._training.of_frozen(training)

    def rng(self) -> Fixed:
        """Return the state of all random generators."""
        return self._rng.now()
