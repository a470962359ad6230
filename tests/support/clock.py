"""A clock that a test moves."""

from __future__ import annotations

from tranlogs.base.clock import Clock


class FakeClock(Clock):
    """Time stands still until `advance`."""

    def __init__(self, start: float = 1000.0) -> None:
        self.seconds = start

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds += seconds
