"""The passes that a script's own `for batch in loader:` has made over a tracked loader (loops/user_loops)."""

from __future__ import annotations

IDLE = 0  # a pass that took no steps
LED = 1  # a pass whose batches were the boundaries
COMPANION = 2  # a pass that another loop asked for batches


class PassHistory:
    """Passes over one loader, in the order in which the script made them.

    Attributes:
        finished: kind of each finished pass, companions left out.
        kind: kind of the running pass; None if the running loop is one of `LoggedOptimizer`.
        leads: True if the batches of the running pass are the boundaries.
        was_companion: True if the previous pass was a companion.
    """

    def __init__(self) -> None:
        self.finished = bytearray()
        self.kind: int | None = None
        self.leads = self.was_companion = False
        self._repeated = 0

    def begin(self, kind: int | None, *, leads: bool = False) -> None:
        """Begin a pass of this kind; None for a loop of `LoggedOptimizer`, or for no loop."""
        self.kind, self.leads = kind, leads

    def next_finished(self) -> int | None:
        """Return the kind of the next finished pass, for a script that runs from its start again; None after the last."""
        if self._repeated == len(self.finished):
            return None
        self._repeated += 1
        return self.finished[self._repeated - 1]
