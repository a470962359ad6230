"""The gradients of a step: their payload (by a plan, or tensor by tensor), their versions, their clipping."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter, is_
from typing import Any

import torch

from tranlogs.base.types import AnyArray, Bytes, TensorSpec
from tranlogs.records import Layout, Payload
from tranlogs.training import GradientLayout

from ..ddp.gradient_ranges import Portion
from ..sharding.shards import place_of, placed, settled, spec_of
from ..state.extra_state import is_torchs
from ..state.fingerprint import version_of, versions
from ..tensors import arrays
from ..tensors.arrays import NAMES, local, memory_order, odd_strides, to_array
from .logged_run import LoggedRun
from .reduced_gradients import ReducedGradients, Reduction

_PLANS_MAX = 16
_get_grad = attrgetter("grad")

GradientVersions = list[tuple[torch.Tensor, int]]


class GradientPlan:
    """One set of gradients.

    Args:
        names: in the log, of each.
        gradients: as `is_plannable` takes them.
    """

    def __init__(self, names: Sequence[str], gradients: Sequence[torch.Tensor]) -> None:
        self._forms = [(g.dtype, g.shape, g.stride()) for g in gradients]
        laid_out = GradientLayout(
            [TensorSpec(n, NAMES[g.dtype], tuple(g.shape), odd_strides(g)) for n, g in zip(names, gradients, strict=True)]
        )
        self.layout, self._small, self._large = laid_out.layout, laid_out.small, laid_out.large
        self._all_small = self._small == list(range(len(names)))
        self._arena = torch.empty(sum(gradients[i].nbytes for i in self._small), dtype=torch.uint8)
        self._bytes: Bytes = self._arena.numpy()
        self._small_alone = Payload(self.layout, [self._bytes])  # if there are no large ones
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
            return [(g.dtype, g.shape, g.stride()) for g in gradients] == self._forms
        except RuntimeError:  # a sparse one has no strides
            return False

    def payload(self, gradients: list[torch.Tensor]) -> Payload:
        """Return the gradients' bytes: small ones copied, large ones as views of their memory."""
        buffers: list[Bytes] = []
        if self._small:
            is_recording = torch.is_grad_enabled()
            torch._C._set_grad_enabled(False)  # what `no_grad` does, in a tenth of the time
            try:
                torch._foreach_copy_(self._views, gradients if self._all_small else [gradients[i] for i in self._small])
            finally:
                torch._C._set_grad_enabled(is_recording)
            if not self._large:
                return self._small_alone
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
        present: list[Any] = list(gradients)
        key = b""
        if type(None) in map(type, gradients):
            present, key = [g for g in gradients if g is not None], bytes(g is None for g in gradients)
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


class CapturedGradients:
    """The gradients that the running step consumes.

    Attributes:
        are_kept: True if the optimizer leaves gradients as they are, so that the log may read them during the step. It is known
            of torch's own optimizers only, and becomes False once a step has written to them.
    """

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.are_kept = is_torchs(inner)
        self._gradients: list[torch.Tensor] = []
        self._versions: list[int] = []

    def capture(self, owners: Iterable[torch.Tensor]) -> None:
        """Note the gradients of these parameters, and their versions, before the step."""
        self._gradients = list(map(_get_grad, owners))
        if type(None) in map(type, self._gradients):
            self._gradients = [gradient for gradient in self._gradients if gradient is not None]
        self._versions = versions(self._gradients)

    def were_written(self) -> bool:
        """Return True if something wrote to the captured gradients, and forget them."""
        gradients, self._gradients = self._gradients, []
        return versions(gradients) != self._versions

    def forget(self) -> None:
        """Drop the references to the gradients."""
        self._gradients, self._versions = [], []


class Clipping:
    """How the gradients of the next step were clipped.

    Attributes:
        recorded: what the record says of it: "max_norm", "norm" and "foreach"; None if the gradients are not clipped.
    """

    def __init__(self) -> None:
        self.recorded: dict[str, Any] | None = None
        self._clipped: GradientVersions = []

    def begin(self, max_norm: float, norm: torch.Tensor, foreach: bool | None) -> None:
        """Note how the logged gradients are about to be clipped."""
        self.recorded = {"max_norm": float(max_norm), "norm": norm.detach().clone(), "foreach": foreach}

    def end(self, parameters: Iterable[torch.Tensor]) -> None:
        """Note the clipped gradients, so that a later write to them is seen."""
        self._clipped = gradient_versions(parameters) if self.recorded is not None else []

    def is_current(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Return True if the gradients are those that were clipped, and nothing wrote to them since."""
        now = gradient_versions(parameters)
        return len(now) == len(self._clipped) and all(
            a is b and u == v for (a, u), (b, v) in zip(now, self._clipped, strict=True)
        )

    def forget(self) -> None:
        """Forget it: the step is over, or its gradients are logged anew."""
        self.recorded, self._clipped = None, []


def gradient_versions(parameters: Iterable[torch.Tensor]) -> GradientVersions:
    """Return each gradient with a number that changes when it is written to."""
    return [(p.grad, version_of(p.grad)) for p in parameters if p.grad is not None]


class GradientPayloads:
    """Turns the gradients of one optimizer into the payloads of its records.

    Args:
        run: to which steps are logged.
        name: of the optimizer in the run.
        inner: the optimizer.
        reduction: to what gradients are rounded; None if they stay as they are.

    Attributes:
        owners: the parameters of the newest payload, with or without a gradient.
        share: the portions of the gradients that this rank logs; None if it logs all of them.
    """

    def __init__(self, run: LoggedRun, name: str, inner: torch.optim.Optimizer, reduction: Reduction | None) -> None:
        self._run, self._name, self._inner = run, name, inner
        self._plans = GradientPlans()
        self._names: list[str] = []
        self._reducer = None if reduction is None else ReducedGradients(reduction)
        self._reduced: tuple[list[str], list[torch.Tensor]] = [], []
        self.owners: list[torch.Tensor] = []
        self.share: list[Portion] | None = None

    def reduce(self, parameters: list[torch.Tensor], step: int) -> None:
        """Replace the gradients that the parameters have now by rounded ones, if they are to be rounded.

        Raises:
            UsageError: they cannot be rounded.
        """
        if self._reducer is not None:
            self._own(parameters)
            self._reduced = self._reducer.reduce(self._names, [p.grad for p in parameters], step)

    def payload(self, parameters: list[torch.Tensor]) -> Payload:
        """Return the bytes of the gradients that the parameters have now; of rounded ones, what `reduce` has left."""
        run = self._run
        self._own(parameters)
        names, gradients = (self._names, list(map(_get_grad, parameters))) if self._reducer is None else self._reduced
        if run.staging is None and run.coordinator.is_single:
            payload = self._plans.payload(names, gradients)
            if payload is not None:
                return payload
        return self._general_payload() if self._reducer is None else self._reduced_payload()

    def _own(self, parameters: list[torch.Tensor]) -> None:
        if len(parameters) != len(self.owners) or not all(map(is_, parameters, self.owners)):
            name_of = self._run.state.name_of
            self.owners, self._names = parameters, [f"grad/{name_of[id(p)]}" for p in parameters]

    def _reduced_payload(self) -> Payload:
        names, tensors = self._reduced
        if self._run.staging is not None:
            return self._run.staging.stage(Layout(map(arrays.spec_of, names, tensors)), tensors)
        return Payload.of(zip(names, map(to_array, tensors), strict=True))

    def _general_payload(self) -> Payload:
        run = self._run
        present = [(n, p) for n, p in zip(self._names, self.owners, strict=True) if settled(p) is not None]
        found = [(name, local(p.grad)) for name, p in present if p.grad is not None]
        self.share = run.coordinator.share(self._name, self._inner, found)
        if self.share is not None:
            found = [(portion.name, portion.tensor) for portion in self.share]
        if run.staging is not None:
            if self.share is not None:
                layout = Layout(portion.spec() for portion in self.share)
            else:
                owned = zip(found, present, strict=True)
                layout = Layout(spec_of(name, gradient, owner) for (name, gradient), (_, owner) in owned)
            return run.staging.stage(layout, [gradient for _, gradient in found])
        contents: Iterable[AnyArray] = (to_array(gradient) for _, gradient in found)
        if self.share is not None:
            contents = (portion.placed(content) for portion, content in zip(self.share, contents, strict=True))
        else:
            contents = (placed(content, owner) for content, (_, owner) in zip(contents, present, strict=True))
        return Payload.of(zip((name for name, _ in found), contents, strict=True))
