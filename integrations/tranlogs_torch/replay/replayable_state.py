"""A state to which logged steps can be applied again (`tranlogs.recovery.Recoverable`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tranlogs.records import Entry
from tranlogs.training import Divergence

from ..state.plain_tensors import unwrapped
from ..state.state import TorchState
from .redo import redo


class ReplayableState(TorchState):
    """The state of a PyTorch run, with redo."""

    def redo(self, entries: Sequence[Entry], tick: Callable[[int], None]) -> Divergence | None:
        """Apply records in order; return the first step after which the fingerprint differs."""
        with unwrapped(self.named):
            return redo(self, entries, tick)
