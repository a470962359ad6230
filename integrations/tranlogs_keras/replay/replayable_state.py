"""A state to which logged steps can be applied again (`tranlogs.recovery.Recoverable`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tranlogs.records import Entry
from tranlogs.training import Divergence

from ..state.state import KerasState
from .redo import redo


class ReplayableState(KerasState):
    """The state of a Keras run, with redo."""

    def redo(self, entries: Sequence[Entry], tick: Callable[[int], None]) -> Divergence | None:
        """Apply records in order; return the first step after which the fingerprint differs."""
        return redo(self, entries, tick)
