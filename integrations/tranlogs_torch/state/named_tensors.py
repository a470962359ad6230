"""Names of the tensors of a run: parameters, and the optimizers and modules that have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from . import naming
from .fingerprint import Fingerprint, Mode
from .group_values import Groups, GroupValues, values_of


class NamedTensors:
    """Parameters and optimizers by name.

    Args:
        modules: the modules by prefix; see `naming.as_modules`.
        optimizers: the inner optimizers by name.
        mode: what a fingerprint of the parameters reads.

    Attributes:
        parameters: all parameters by name. The order is that of the records.
        name_of: names of the parameters by id.
        fingerprint: of the parameters that the log holds.
        group_values: reads the hyper-parameters of an optimizer, by its name.
        logged_members: ids of the parameters in each group of an optimizer, as the log knows them.
    """

    def __init__(
        self, modules: Mapping[str, nn.Module], optimizers: Mapping[str, torch.optim.Optimizer], mode: Mode = "auto"
    ) -> None:
        self.modules, self.optimizers = dict(modules), dict(optimizers)
        self.parameters: dict[str, torch.Tensor] = {}
        self.name_of: dict[int, str] = {}
        self.group_values: dict[str, GroupValues] = {}
        self.logged_members: dict[str, list[list[int]]] = {}
        self._mode: Mode = mode
        self.fingerprint: Fingerprint
        self.refresh()

    def refresh(self) -> None:
        """Look up the parameters again (a group or an optimizer was added). New parameters come last."""
        found = naming.name_parameters(self.modules, self.optimizers)
        self.use({name: found[name] for name in self.parameters if name in found} | found)

    def use(self, parameters: dict[str, torch.Tensor], covered: int | None = None) -> None:
        """Replace the parameters, in this order. Fingerprints cover the first `covered` of them (default: all)."""
        self.parameters = parameters
        self.name_of = {id(p): name for name, p in self.parameters.items()}
        self.fingerprint = Fingerprint(list(self.parameters.values())[:covered], self._mode)

    def hyper(self, which: str) -> Groups:
        """Return an optimizer's parameter groups without the parameters. The values are live."""
        return values_of(self.optimizers[which])

    def group_names(self, which: str) -> list[list[str]]:
        """Return the names of the parameters in each group."""
        return [[self.name_of[id(p)] for p in group["params"]] for group in self.optimizers[which].param_groups]

    def group_members(self, which: str) -> list[list[int]]:
        """Return the ids of the parameters in each group."""
        return [list(map(id, group["params"])) for group in self.optimizers[which].param_groups]

    def groups_to_log(self, which: str) -> dict[str, Any]:
        """Return an optimizer's groups for the log: names and live values. Note that the log knows their members."""
        names = self.group_names(which)
        self.logged_members[which] = self.group_members(which)
        return {"params": names, "values": self.hyper(which)}
