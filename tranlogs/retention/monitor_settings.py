"""Settings of a monitor that the trainer starts (`tranlogs.journal.monitor_launch`)."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.errors import UsageError
from ..base.quantities import parse_bytes, parse_seconds


@dataclass(frozen=True, slots=True)
class Monitor:
    """Settings of a monitor that the trainer starts.

    It is a process. It outlives the trainer, seals the segment that a killed trainer left open, and ends by itself once the
    trainer has closed the run, or is dead and nothing is left to do.

    Attributes:
        budget: bytes on disk for this rank, like "20GiB"; None prunes nothing.
        store: URL of the store to which sealed segments and checkpoints are shipped.
        interval: time between two evaluations, like "10s".
    """

    budget: str | int | None = None
    store: str | None = None
    interval: str = "10s"

    def __post_init__(self) -> None:
        if self.budget_bytes is not None and self.budget_bytes < 1:
            raise UsageError(f"budget must be at least 1 byte, got {self.budget!r}")
        if self.interval_seconds <= 0:
            raise UsageError(f"interval must be positive, got {self.interval!r}")

    @property
    def budget_bytes(self) -> int | None:
        """The budget in bytes; None for no limit."""
        return self.budget if self.budget is None or isinstance(self.budget, int) else parse_bytes(self.budget, "budget")

    @property
    def interval_seconds(self) -> float:
        """The interval in seconds."""
        return parse_seconds(self.interval, "interval")
