"""The payload of a step's gradients: by a plan where there is one, else tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable
from operator import is_

import torch

from tranlogs.base.types import AnyArray
from tranlogs.records import Layout, Payload

from ...ddp.gradient_ranges import Portion
from ...sharding.shards import placed, settled, spec_of
from ...tensors.arrays import to_array
from ...tensors.placement import local
from ..logged_run import HookedOptimizer, LoggedRun
from .gradient_plan import GradientPlans


class GradientPayloads:
    """Turns the gradients of one optimizer into the payloads of its records.

    Attributes:
        owners: the parameters of the newest payload, with or without a gradient.
        share: the portions of the gradients that this rank logs; None if it logs all of them.
    """

    def __init__(self, run: LoggedRun, hooks: HookedOptimizer) -> None:
        self._run, self._hooks = run, hooks
        self._plans = GradientPlans()
        self._names: list[str] = []
        self.owners: list[torch.Tensor] = []
        self.share: list[Portion] | None = None

    def payload(self, parameters: list[torch.Tensor]) -> Payload:
        """Return the bytes of the gradients that the parameters have now."""
        run = self._run
        if len(parameters) != len(self.owners) or not all(map(is_, parameters, self.owners)):
            name_of = run.state.name_of
            self.owners, self._names = parameters, [f"grad/{name_of[id(p)]}" for p in parameters]
        if run.staging is None and run.coordinator.is_single:
            payload = self._plans.payload(self._names, [p.grad for p in parameters])
            if payload is not None:
                return payload
        return self._general_payload()

    def _general_payload(self) -> Payload:
        run = self._run
        present = [(n, p) for n, p in zip(self._names, self.owners, strict=True) if settled(p) is not None]
        found = [(name, local(p.grad)) for name, p in present if p.grad is not None]
        self.share = run.coordinator.share(self._hooks, found)
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
