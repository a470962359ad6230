"""Parts of a boundary that rarely change: each is encoded again only when it has changed."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
from torch import nn

from tranlogs.records import Fixed

from ..tensors.arrays import NAMES, is_dtensor, local, to_array
from . import naming
from .group_values import Groups, GroupValues

_get_training, _get_modules, _get_buffers = attrgetter("training"), attrgetter("_modules"), attrgetter("_buffers")

_Form = tuple[int, torch.dtype, torch.Size, tuple[int, ...]]


class Buffers:
    """Buffers as a boundary takes them. What is the same at each boundary, how their bytes are reached, is found out once.

    Args:
        named: the buffers, by name.
    """

    def __init__(self, named: Mapping[str, torch.Tensor]) -> None:
        self.named = named
        self._tensors = list(named.values())
        self._is_plain = not any(map(is_dtensor, self._tensors))
        self._forms: list[_Form] = []
        self._values: dict[str, Any] = {}

    def read(self) -> dict[str, Any]:
        """Return the buffers: an `Array` that views the memory of one that lies dense on the CPU, any other as a tensor."""
        if not self._is_plain:
            return dict(zip(self.named, map(local, self._tensors), strict=True))
        try:
            forms = [(b.data_ptr(), b.dtype, b.shape, b.stride()) for b in self._tensors]
        except RuntimeError:  # a sparse one has no strides
            return dict(self.named)
        if forms != self._forms:
            values = (to_array(b) if _is_viewable(b) else b for b in self._tensors)
            self._forms, self._values = forms, dict(zip(self.named, values, strict=True))
        return self._values


def _is_viewable(buffer: torch.Tensor) -> bool:
    """Return True if `to_array` gives a view of the buffer's memory. (Of bytes, random states have a form of their own.)"""
    return (
        type(buffer) in (torch.Tensor, nn.Buffer)
        and buffer.device.type == "cpu"
        and buffer.is_contiguous()
        and buffer.dtype in NAMES
        and buffer.dtype is not torch.uint8
        and not buffer.is_complex()
        and not buffer.is_neg()
    )


class ModuleWalk:
    """Reader of the modules at a boundary. The structure is compared at C speed; walking it would take many times longer.

    Args:
        modules: by prefix; see `naming.as_modules`.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = modules
        self._parts: dict[str, list[nn.Module]] = {}
        self._all: list[nn.Module] = []
        self._counts: list[int] = []
        self._seen: list[Any] = []
        self._buffers: dict[str, torch.Tensor] = {}
        self._modes: list[bool] = []
        self._training: dict[str, bytes] = {}

    def read(self) -> tuple[dict[str, torch.Tensor], dict[str, bytes]]:
        """Return all buffers by name and, by prefix, one byte a module: whether it is in training mode.

        What has not changed is the same object.
        """
        counts, seen = self._structure()
        if counts != self._counts or len(seen) != len(self._seen) or not all(map(is_, seen, self._seen)):
            self._parts = {prefix: list(module.modules()) for prefix, module in self._modules.items()}
            self._all, self._modes = list(chain.from_iterable(self._parts.values())), []
            self._buffers = naming.named_buffers(self._modules)
            self._counts, self._seen = self._structure()
        modes = list(map(_get_training, self._all))
        if modes != self._modes:
            self._modes = modes
            self._training = {prefix: bytes(map(_get_training, parts)) for prefix, parts in self._parts.items()}
        return self._buffers, self._training

    def _structure(self) -> tuple[list[int], list[Any]]:
        """Return the numbers of children and buffers of each module, and these. (Large numbers are new objects.)"""
        children, buffers = list(map(_get_modules, self._all)), list(map(_get_buffers, self._all))
        return [*map(len, children), *map(len, buffers)], [
            *self._modules.values(),
            *chain.from_iterable(map(dict.values, children)),
            *chain.from_iterable(map(dict.values, buffers)),
        ]


class HyperParameters:
    """Reader of the settings of all parameter groups at a boundary.

    Args:
        values: reads those of an optimizer, by its name.
    """

    def __init__(self, values: Mapping[str, GroupValues]) -> None:
        self._values = values
        self._read: dict[str, Groups] = {}
        self._fixed = Fixed({})

    def read(self) -> Fixed:
        """Return the settings, by optimizer; the previous object while they are the same."""
        read: dict[str, Groups] = {}
        is_same = len(self._values) == len(self._read)
        for which, values in self._values.items():
            now = read[which] = values.now()
            is_same = is_same and now is self._read.get(which)
        if not is_same:
            self._read, self._fixed = read, Fixed(read)
        return self._fixed
