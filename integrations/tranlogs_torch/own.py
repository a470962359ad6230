"""What objects keep beside the places that torch stores: attributes of an own optimizer, extra state of modules.

An optimizer may count in `self.k`, a module in what `get_extra_state` returns. What can be stored without running code at
load time comes back like any other state; of the rest the names are known, so that nobody calls the run exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tranlogs.codec import tree
from tranlogs.errors import UnencodableState

from .adapt import adapt

_TORCHS_OWN = {"defaults", "state", "param_groups", "step"}  # a scheduler leaves a `step` of its own, bound to the original
_TORCHS_PREFIXES = ("_optimizer_", "_zero_grad_profile_name", "_warned_capturable", "_opt_called", "_step_count", "_tranlogs_")


def is_torchs(optimizer: Any) -> bool:
    """Whether the optimizer is one of torch's own, whose steps are known."""
    return type(optimizer).__module__.startswith("torch.")


def own_attributes(optimizer: Optimizer) -> dict[str, Any]:
    """Attributes of an optimizer's own; none of one of torch's."""
    if is_torchs(optimizer):
        return {}
    return {name: value for name, value in vars(optimizer).items()
            if name not in _TORCHS_OWN and not name.startswith(_TORCHS_PREFIXES)}  # fmt: skip


def split(optimizer: Optimizer) -> tuple[dict[str, Any], list[str]]:
    """An optimizer's own attributes that can be stored, and the names of the others: a tensor may be an alias of another."""
    stored, others = {}, []
    for name, value in own_attributes(optimizer).items():
        if _is_plain(value):
            stored[name] = value
        else:
            others.append(name)
    return stored, others


def set_own(optimizer: Optimizer, stored: Mapping[str, Any]) -> None:
    """Give an optimizer its recorded attributes."""
    for name, value in stored.items():
        setattr(optimizer, name, value)


def extra_states(modules: Mapping[str, nn.Module]) -> tuple[dict[str, Any], list[str]]:
    """What `get_extra_state` gives, by prefix and path; and the paths of what cannot be stored."""
    stored, others = {}, []
    for path, module in _with_extra_state(modules).items():
        value = module.get_extra_state()
        if _is_storable(value):
            stored[path] = value
        else:
            others.append(path)
    return stored, others


def set_extra_states(modules: Mapping[str, nn.Module], stored: Mapping[str, Any]) -> None:
    """Give each module its recorded extra state."""
    for path, module in _with_extra_state(modules).items():
        if path in stored:
            module.set_extra_state(stored[path])


def _with_extra_state(modules: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    return {
        prefix + path: module
        for prefix, root in modules.items()
        for path, module in root.named_modules()
        if type(module).get_extra_state is not nn.Module.get_extra_state
    }


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
