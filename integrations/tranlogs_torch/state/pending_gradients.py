"""Gradients that lie about at a boundary.

Those that something was added to since their optimizer's last step may wait for the next one, and are state like any
other. Those that a step has used, and nothing touched since, are mostly cleared by the next batch: they are logged until it
is seen that they were gone when the optimizer took its next step. From then on redoing that step brings them back, for a
script that reads them; where it was not redone (the recovery landed on a checkpoint, or weights are logged) they are zeros:
after `zero_grad(set_to_none=False)` an optimizer visits a parameter whose gradient is zero, and not one that has none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from itertools import repeat
from operator import attrgetter
from typing import Any

import torch

from ..sharding import fsdp
from ..sharding.shards import like
from ..tensors.arrays import local
from .fingerprint import version_of, versions
from .state import TorchState

_TRAINS, _DENSE, _SPARSE, _ORPHAN, _REDONE = 1, 2, 4, 8, 16  # flags of a parameter
_get_grad, _get_requires_grad = attrgetter("grad"), attrgetter("requires_grad")
_LEFT = "_tranlogs_left"  # on a gradient: its version when it lay about at a boundary
_ZERO = "_tranlogs_zero"  # on a gradient: its version when it was zero
_USED = "_tranlogs_used"  # on a gradient: its version when its optimizer had taken a step with it


class Gradients:
    """Gradients at a boundary: those that may wait for the next step are recorded and restored."""

    def __init__(self, state: TorchState) -> None:
        self._state = state
        self._is_kept: dict[str, bool] = {}  # by optimizer, once it is known
        self._left: set[str] = set()  # optimizers with gradients that lay about at the last boundary

    def read(self) -> tuple[bytes, dict[str, torch.Tensor]]:
        """Flags of each parameter, and the gradients that may wait for a step."""
        parameters = self._state.named.parameters
        gradients = list(map(_get_grad, parameters.values()))
        kinds = set(map(type, gradients))
        if kinds == {type(None)}:
            self._left = set()
            return bytes(map(_get_requires_grad, parameters.values())), {}  # _TRAINS is 1, as True is
        if kinds == {torch.Tensor} and (flags_of_used := self._read_used(parameters.values(), gradients)) is not None:
            return flags_of_used, {}
        self._left = set()
        owners = {id(p): which for which, p in self._owned()}
        flags, waiting = bytearray(), {}
        for name, parameter in parameters.items():
            flag, gradient = _TRAINS if parameter.requires_grad else 0, parameter.grad
            if gradient is not None:
                flag |= _DENSE if gradient.layout is torch.strided else _SPARSE
                which = owners.get(id(parameter))
                if which is None:
                    flag |= _ORPHAN
                elif not self._is_zero(which, gradient):
                    if self._is_cleared(which, gradient):
                        flag |= _REDONE
                    else:
                        waiting[name] = local(gradient)
            flags.append(flag)
        return bytes(flags), waiting

    def _read_used(self, parameters: Collection[torch.Tensor], gradients: list[Any]) -> bytes | None:
        """Return the flags if each parameter has a gradient that a step has used, and that is gone before the next step.

        That is so at nearly every boundary of most scripts. The answer is that of the loop in `read`, without Python code for
        each parameter.
        """
        if any(self._is_kept.get(which) is not False for which in self._state.optimizers):
            return None
        if {g.layout for g in gradients} != {torch.strided}:
            return None
        now = versions(gradients)
        if [getattr(g, _USED, None) for g in gradients] != now or any(hasattr(g, _ZERO) for g in gradients):
            return None
        deque(map(setattr, gradients, repeat(_LEFT), now), maxlen=0)
        self._left = set(self._state.optimizers)
        return bytes([(_TRAINS if p.requires_grad else 0) | _DENSE | _REDONE for p in parameters])

    def _is_zero(self, which: str, gradient: torch.Tensor) -> bool:
        """Note a gradient that lies about; whether it is known to be zero."""
        if _is_marked(gradient, _ZERO):
            return True
        if not self._is_cleared(which, gradient) and not _has_values(gradient):
            setattr(gradient, _ZERO, version_of(gradient))
            return True
        setattr(gradient, _LEFT, version_of(gradient))
        self._left.add(which)
        return False

    def _is_cleared(self, which: str, gradient: torch.Tensor) -> bool:
        """Return True if a step has used the gradient, and the script clears it before the next step."""
        return _is_marked(gradient, _USED) and self._is_kept.get(which) is False

    def before_step(self, which: str) -> None:
        """Learn from a step whether the gradients that lay about are part of what it takes."""
        if which in self._left:
            self._left.discard(which)
            gradients = (p.grad for owner, p in self._owned() if owner == which)
            is_there = any(hasattr(gradient, _LEFT) for gradient in gradients if gradient is not None)
            self._is_kept[which] = self._is_kept.get(which, False) or is_there

    def are_waiting(self) -> bool:
        """Return True if a batch since the last boundary left gradients for a later step."""
        gradients = (p.grad for _, p in self._owned())
        found = any(g is not None and not _is_marked(g, _LEFT) and not _is_marked(g, _ZERO) for g in gradients)
        return found or fsdp.are_accumulating(self._state.modules)

    def write(self, flags: bytes, waiting: dict[str, torch.Tensor]) -> list[str]:
        """Set gradients, and which parameters train; what redone steps have left lies in the parameters already.

        Returns:
            Names of parameters whose gradients nobody has recorded.
        """
        orphans, owners = [], {id(p): which for which, p in self._owned()}
        for (name, parameter), flag in zip(self._state.parameters.items(), flags, strict=False):
            if parameter.requires_grad != bool(flag & _TRAINS):
                parameter.requires_grad_(bool(flag & _TRAINS))
            redone, parameter.grad = parameter.grad, None
            if name in waiting:
                parameter.grad = like(parameter, waiting[name].to(parameter.device))
                setattr(parameter.grad, _LEFT, version_of(parameter.grad))  # as at the boundary: this batch adds nothing to it
                if id(parameter) in owners:
                    self._left.add(owners[id(parameter)])
            elif flag & _REDONE and redone is not None:
                parameter.grad = redone
                for mark in (_USED, _LEFT):
                    setattr(redone, mark, version_of(redone))
            elif flag & (_DENSE | _SPARSE):
                layout = torch.sparse_coo if flag & _SPARSE else torch.strided
                dtype = getattr(parameter, "grad_dtype", None) or parameter.dtype
                parameter.grad = torch.zeros_like(parameter, dtype=dtype, layout=layout, requires_grad=False)
                setattr(parameter.grad, _ZERO, version_of(parameter.grad))
            if flag & _ORPHAN:
                orphans.append(name)
        return orphans

    def _owned(self) -> Iterator[tuple[str, torch.Tensor]]:
        for which in self._state.optimizers:
            for group in self._state.optimizers[which].param_groups:
                for parameter in group["params"]:
                    yield which, parameter


@torch.no_grad()
def move_into(place: torch.Tensor, gradient: torch.Tensor) -> None:
    """Copy a gradient to another place, with what is known of it."""
    marks = [mark for mark in (_LEFT, _ZERO, _USED) if _is_marked(gradient, mark)]
    place.copy_(gradient)
    for mark in marks:
        setattr(place, mark, version_of(place))


def mark_used(optimizer: torch.optim.Optimizer) -> None:
    """Note that the optimizer has taken a step with its gradients."""
    present: list[Any] = []
    for group in optimizer.param_groups:
        present += map(_get_grad, group["params"])
    kinds = set(map(type, present))
    if type(None) in kinds:
        present = [gradient for gradient in present if gradient is not None]
    is_plain = kinds <= {torch.Tensor, type(None)}
    now = versions(present if is_plain else list(map(local, present)))
    deque(map(setattr, present, repeat(_USED), now), maxlen=0)  # without a Python loop: there may be hundreds


def mark_zero(optimizer: torch.optim.Optimizer) -> None:
    """Note that the optimizer's gradients were set to zero, in place."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None:
                setattr(gradient, _ZERO, version_of(gradient))
                if hasattr(gradient, _LEFT):
                    delattr(gradient, _LEFT)


def _is_marked(gradient: torch.Tensor, mark: str) -> bool:
    return getattr(gradient, mark, None) == version_of(gradient)


def _has_values(gradient: torch.Tensor) -> bool:
    values = gradient._values() if gradient.layout is torch.sparse_coo else local(gradient)
    return bool(values.count_nonzero())  # NaN counts
