"""A state to which logged steps can be applied again (`tranlogs.recovery.Recoverable`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tranlogs.records import Entry
from tranlogs.training import Divergence

from ..state.plain_tensors import unwrapped
from ..state.state import TorchState
from .redo import Orders, redo


class ReplayableState(TorchState):
    """The state of a PyTorch run, with redo."""

    def __init__(self, *parts: Any, **settings: Any) -> None:
        super().__init__(*parts, **settings)
        self._orders = Orders(is_free=True)

    def redo(self, entries: Sequence[Entry], tick: Callable[[int], None]) -> Divergence | None:
        """Apply records in order; return the first step after which the fingerprint differs."""
        with unwrapped(self.named):
            return redo(self, entries, tick, self._orders)

    def redo_as_trained(self) -> bool:
        """Redo step by step from now on; return False if no step was redone tensor by tensor."""
        was_reordered, self._orders = self._orders.was_used, Orders(is_free=False)
        return was_reordered
