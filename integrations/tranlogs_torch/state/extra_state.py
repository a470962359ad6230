"""State outside the places that torch stores: attributes of a user's optimizer, and extra state of modules.

An optimizer may count in `self.k`, a module in what `get_extra_state` returns. What can be stored without running code at
load time comes back like any other state; of the rest the names are known, so that nobody calls the run exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tranlogs.base.errors import UnencodableState
from tranlogs.records import tree

from ..tensors.arrays import adapt

_TORCHS_OWN = {"defaults", "state", "param_groups", "step"}  # a scheduler leaves a `step` of its own, bound to the original
_TORCHS_PREFIXES = ("_optimizer_", "_zero_grad_profile_name", "_warned_capturable", "_opt_called", "_step_count", "_tranlogs_")


def is_torchs(optimizer: Any) -> bool:
    """Return True if the optimizer is one of torch's own, whose steps are known."""
    return type(optimizer).__module__.startswith("torch.")


def own_attributes(optimizer: Optimizer) -> dict[str, Any]:
    """Attributes of an optimizer's own; none of one of torch's."""
    if is_torchs(optimizer):
        return {}
    return {
        name: value
        for name, value in vars(optimizer).items()
        if name not in _TORCHS_OWN and not name.startswith(_TORCHS_PREFIXES)
    }


def split(optimizer: Optimizer) -> tuple[dict[str, Any], list[str]]:
    """Return an optimizer's own attributes that can be stored, and the names of the others (a tensor may be an alias)."""
    stored, others = {}, []
    for name, value in own_attributes(optimizer).items():
        if _is_plain(value):
            stored[name] = value
        else:
            others.append(name)
    return stored, others


def frozen(value: Any) -> Any:
    """Return a hyper-parameter as it is now: schedulers fill tensors in place, and a list may be changed."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, tuple):
        return tuple(frozen(v) for v in value)
    if isinstance(value, list):
        return [frozen(v) for v in value]
    if isinstance(value, dict):
        return {k: frozen(v) for k, v in value.items()}
    return value


def set_own(optimizer: Optimizer, stored: Mapping[str, Any]) -> None:
    """Give an optimizer its recorded attributes."""
    for name, value in stored.items():
        setattr(optimizer, name, value)


class ExtraState:
    """The extra state of a run's modules (`get_extra_state`). The modules that have some, and can store it, are found once.

    Args:
        modules: by prefix.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = modules

    def read(self) -> dict[str, Any]:
        """Return the extra state of each module, by prefix and path."""
        return {path: module.get_extra_state() for path, module in self._stored.items()} if self._stored else {}

    def write(self, recorded: Mapping[str, Any]) -> None:
        """Set the recorded extra state of each module."""
        for path, module in self._stored.items():
            if path in recorded:
                module.set_extra_state(recorded[path])

    @property
    def lost(self) -> list[str]:
        """Paths of modules whose extra state cannot be stored without running code at load time."""
        return [path for path in self._all if path not in self._stored]

    @cached_property
    def _all(self) -> dict[str, nn.Module]:
        return {
            prefix + path: module
            for prefix, root in self._modules.items()
            for path, module in root.named_modules()
            if type(module).get_extra_state is not nn.Module.get_extra_state
        }

    @cached_property
    def _stored(self) -> dict[str, nn.Module]:
        return {path: module for path, module in self._all.items() if _is_storable(module.get_extra_state())}


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(_is_plain(key) and _is_plain(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, float, complex, str, bytes, torch.dtype)


def _is_storable(value: Any) -> bool:
    try:
        tree.encode(value, adapt=adapt)
    except UnencodableState:
        return False
    return True
