"""The gradients of a step as the payload of its record: one layout for as long as their forms stay the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tranlogs.base.types import Bytes, SparseArray, TensorSpec
from tranlogs.records import Layout, Payload, SparseForm
from tranlogs.training import GradientLayout

from ..backends import Backend, Gradients
from ..state.state import KerasState
from ..state.variables import Plan, Slot


class GradientPayloads:
    """Makes payloads of the gradients of a fixed list of variables.

    Args:
        slots: of the variables, in the order of the gradients.
        backend: that computes them.

    Attributes:
        forms: of the last payload: what it does not tell of gradients that are sparse (`Backend.form_of`), by variable.
    """

    def __init__(self, slots: Sequence[Slot], backend: Backend) -> None:
        self._backend = backend
        self._slots = list(slots)
        self._names = ["grad/" + slot.name.partition("/")[2] for slot in slots]
        self.forms: dict[str, tuple[str, str]] = {}
        self._forms: list[Any] | None = None  # what the layout was made for
        self._layout = Layout(())
        self._small: list[int] = []  # which gradients, in the order of the layout
        self._large: list[int] = []
        self._absent: frozenset[int] = frozenset()

    def payload(self, gradients: Gradients) -> Payload:
        """The payload of one step."""
        self.forms = {}
        forms = self._backend.forms_of(gradients)
        if forms is None:
            return self._with_sparse(gradients)
        if forms != self._forms:
            self._lay_out(gradients, forms)
        buffers = self._backend.bytes_of([gradients[i] for i in self._small])
        gathered = [np.concatenate(buffers)] if len(buffers) > 1 else buffers
        large = self._backend.bytes_of([gradients[i] for i in self._large])
        return Payload(self._layout, [*gathered, *large], self._absent)

    def _lay_out(self, gradients: Gradients, forms: list[Any]) -> None:
        specs = [
            self._spec(i, None if gradient is None else self._backend.dtype_of(gradient))
            for i, gradient in enumerate(gradients)
        ]
        laid_out = GradientLayout(specs)
        self._layout, self._small, self._large = laid_out.layout, laid_out.small, laid_out.large
        self._absent = frozenset(at for at, i in enumerate(laid_out.order) if gradients[i] is None)
        self._forms = forms

    def _spec(self, i: int, dtype: str | None) -> TensorSpec:
        return TensorSpec(self._names[i], dtype or "uint8", (0,) if dtype is None else self._slots[i].shape)

    def _with_sparse(self, gradients: Gradients) -> Payload:
        """Where some are rows of a variable, whose number changes from step to step."""
        specs: list[TensorSpec] = []
        buffers: list[Bytes] = []
        absent: set[int] = set()
        sparse: dict[int, SparseForm] = {}
        for i, gradient in enumerate(gradients):
            content = None if gradient is None else self._backend.to_host(gradient)
            specs.append(self._spec(i, None if content is None else content.dtype))
            if (form := self._backend.form_of(gradient)) is not None:
                self.forms[self._slots[i].name] = form
            if content is None:
                absent.add(i)
            elif isinstance(content, SparseArray):
                sparse[i] = SparseForm(content.indices.shape[0], content.values.shape[0], content.is_coalesced)
                buffers += [content.indices.data, content.values.data]
            else:
                buffers.append(content.data)
        if self._forms != specs:
            self._layout, self._forms = Layout(specs), specs
        return Payload(self._layout, [buffer for buffer in buffers if buffer.nbytes], frozenset(absent), sparse)


class PayloadsByOptimizer:
    """Makes payloads of the gradients of each optimizer, as the plan of the state has them.

    Attributes:
        forms: those of the last payload (see `GradientPayloads`).
    """

    def __init__(self, state: KerasState) -> None:
        self._state = state
        self._known: dict[str, tuple[Plan, GradientPayloads]] = {}
        self.forms: dict[str, tuple[str, str]] = {}

    def payload(self, which: str, gradients: Gradients) -> Payload:
        """Return the payload of a step's gradients.

        Args:
            which: name of the optimizer.
            gradients: in the order of its variables.
        """
        plan = self._state.plan
        known = self._known.get(which)
        if known is None or known[0] is not plan:
            known = plan, GradientPayloads(self._state.variables.trained_of(which), self._state.backend)
            self._known[which] = known
        payload = known[1].payload(gradients)
        self.forms = known[1].forms
        return payload
