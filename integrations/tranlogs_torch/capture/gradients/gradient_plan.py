"""How the gradients of one optimizer become a payload, with no Python for each tensor.

A plan is made once for a set of gradients and holds while their shapes, dtypes and strides stay: the layout, and an arena with
a view for each small gradient. At a step one call copies all small gradients into the arena, and the large ones are taken
where they lie. Other sets (some parameters without a gradient) have plans of their own. What a plan cannot hold (sparse
gradients, parts of tensors, other devices) takes the general path.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tranlogs.base.types import Bytes, TensorSpec
from tranlogs.records import Payload
from tranlogs.training import GradientLayout

from ...sharding.shards import place_of
from ...tensors.arrays import NAMES, memory_order, odd_strides

_PLANS_MAX = 16


class GradientPlan:
    """One set of gradients.

    Args:
        names: in the log, of each.
        gradients: as `is_plannable` takes them.
    """

    def __init__(self, names: Sequence[str], gradients: Sequence[torch.Tensor]) -> None:
        self._dtypes = [g.dtype for g in gradients]
        self._shapes = [g.shape for g in gradients]
        self._strides = [g.stride() for g in gradients]
        laid_out = GradientLayout(
            [TensorSpec(n, NAMES[g.dtype], tuple(g.shape), odd_strides(g)) for n, g in zip(names, gradients, strict=True)]
        )
        self.layout, self._small, self._large = laid_out.layout, laid_out.small, laid_out.large
        self._all_small = self._small == list(range(len(names)))
        self._arena = torch.empty(sum(gradients[i].nbytes for i in self._small), dtype=torch.uint8)
        self._bytes: Bytes = self._arena.numpy()
        self._views: list[torch.Tensor] = []
        at = 0
        for i in self._small:
            gradient = gradients[i]
            part = self._arena[at : at + gradient.nbytes].view(gradient.dtype)
            self._views.append(part.as_strided(gradient.shape, gradient.stride(), part.storage_offset()))
            at += gradient.nbytes

    def fits(self, gradients: Sequence[torch.Tensor]) -> bool:
        """Return True if the gradients are laid out as those that the plan was made of."""
        try:
            return (
                [g.stride() for g in gradients] == self._strides
                and [g.dtype for g in gradients] == self._dtypes
                and [g.shape for g in gradients] == self._shapes
            )
        except RuntimeError:  # a sparse one has no strides
            return False

    @torch.no_grad()
    def payload(self, gradients: list[torch.Tensor]) -> Payload:
        """Return the gradients' bytes: small ones copied, large ones as views of their memory."""
        buffers: list[Bytes] = []
        if self._small:
            torch._foreach_copy_(self._views, gradients if self._all_small else [gradients[i] for i in self._small])
            buffers.append(self._bytes)
        buffers += [flat_view(gradients[i]) for i in self._large]
        return Payload(self.layout, buffers)


class GradientPlans:
    """The plans of one optimizer."""

    def __init__(self) -> None:
        self._plans: dict[bytes, GradientPlan] = {}
        self._names: list[str] = []

    def payload(self, names: list[str], gradients: Sequence[torch.Tensor | None]) -> Payload | None:
        """Return the payload of a step's gradients; None where they need the general path.

        Args:
            names: of the optimizer's parameters; another list object stands for other parameters.
            gradients: of each, None where there is none.
        """
        if names is not self._names:
            self._names, self._plans = names, {}
        present = [g for g in gradients if g is not None]
        key = b"" if len(present) == len(gradients) else bytes(g is None for g in gradients)
        plan = self._plans.get(key)
        if plan is None or not plan.fits(present):
            plan = self._made(key, [name for name, g in zip(names, gradients, strict=True) if g is not None], present)
        return None if plan is None else plan.payload(present)

    def _made(self, key: bytes, names: Sequence[str], gradients: Sequence[torch.Tensor]) -> GradientPlan | None:
        self._plans.pop(key, None)
        if not all(map(is_plannable, gradients)):
            return None
        if len(self._plans) >= _PLANS_MAX:
            self._plans.clear()
        plan = self._plans[key] = GradientPlan(names, gradients)
        return plan


def is_plannable(gradient: torch.Tensor) -> bool:
    """Return True for a plain dense tensor in the memory of the CPU, all of which is this process's."""
    return (
        type(gradient) is torch.Tensor
        and gradient.layout is torch.strided
        and gradient.device.type == "cpu"
        and gradient.dtype in NAMES
        and not gradient.is_complex()
        and not gradient.is_neg()
        and gradient.numel() > 0
        and memory_order(gradient).is_contiguous()
        and place_of(gradient) is None
    )


def flat_view(tensor: torch.Tensor) -> Bytes:
    """Return a dense tensor's memory as uint8, in storage order."""
    view: Bytes = tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
    return view
