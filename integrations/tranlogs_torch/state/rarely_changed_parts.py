"""Parts of a boundary that rarely change: each is encoded again only when it has changed."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
from torch import nn

from tranlogs.records import Fixed
from tranlogs.training import FixedCache

from ..data.rng import KeptRng
from . import naming
from .group_values import GroupValues
from .state import TorchState

_is_training = attrgetter("training")


class ModuleWalk:
    """Reader of the modules at a boundary. The structure is compared at C speed; walking it would take many times longer.

    Args:
        modules: by prefix; see `naming.as_modules`.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = modules
        self._parts: dict[str, list[nn.Module]] = {}
        self._all: list[nn.Module] = []
        self._seen: list[Any] = []
        self._counts: list[int] = []
        self._buffers: dict[str, torch.Tensor] = {}
        self._modes: dict[str, bytes] = {}

    def read(self) -> tuple[dict[str, torch.Tensor], dict[str, bytes]]:
        """Return all buffers by name and, by prefix, one byte a module: whether it is in training mode.

        Modes that have not changed are the same object.
        """
        self._look()
        modes = {prefix: bytes(map(_is_training, parts)) for prefix, parts in self._parts.items()}
        if modes != self._modes:
            self._modes = modes
        return self._buffers, self._modes

    def _look(self) -> None:
        counts, seen = self._structure()
        if counts == self._counts and len(seen) == len(self._seen) and all(map(is_, seen, self._seen)):
            return
        self._parts = {prefix: list(module.modules()) for prefix, module in self._modules.items()}
        self._all = list(chain.from_iterable(self._parts.values()))
        self._buffers = naming.named_buffers(self._modules)
        self._counts, self._seen = self._structure()

    def _structure(self) -> tuple[list[int], list[Any]]:
        """Return the numbers of children and buffers of each module, and these. (Large numbers are new objects.)"""
        children, buffers = [m._modules for m in self._all], [m._buffers for m in self._all]
        return [*map(len, children), *map(len, buffers)], [
            *self._modules.values(),
            *chain.from_iterable(map(dict.values, children)),
            *chain.from_iterable(map(dict.values, buffers)),
        ]


class SteadyParts:
    """Reads the hyper-parameters, the flags of parameters, the modes of modules and the random states of a run."""

    def __init__(self, state: TorchState) -> None:
        self._state = state
        self._walk = ModuleWalk(state.modules)
        self._values: dict[str, GroupValues] = {}  # by optimizer
        self._after, self._training, self._rng = FixedCache(), FixedCache(), KeptRng()
        self._flags = Fixed(b"")

    def hyper(self) -> Fixed:
        """Return the settings of all parameter groups, by optimizer."""
        return self._after.of_frozen({which: self._values_of(which).now() for which in self._state.optimizers})

    def _values_of(self, which: str) -> GroupValues:
        found = self._values.get(which)
        if found is None:
            found = self._values[which] = GroupValues(self._state.optimizers[which])
        return found

    def flags(self, flags: bytes) -> Fixed:
        """Return which parameters require gradients."""
        if flags != self._flags.value:
            self._flags = Fixed(flags)
        return self._flags

    def modules(self) -> tuple[dict[str, torch.Tensor], Fixed]:
        """Return the buffers by name, and which modules are in training mode."""
        buffers, training = self._walk.read()
        return buffers, self._training.of_frozen(training)

    def rng(self) -> Fixed:
        """Return the state of all random generators."""
        return self._rng.now()
