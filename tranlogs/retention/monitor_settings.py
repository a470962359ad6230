"""What a user chooses for a monitor that the trainer brings along (`tranlogs.journal.embedded_monitor` starts it)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..base.errors import UsageError
from ..base.quantities import parse_bytes, parse_seconds


@dataclass(frozen=True, slots=True)
class Monitor:
    """A monitor that a trainer brings along.

    Attributes:
        mode: "thread" ends with the trainer's process. "process" outlives it, seals what a killed trainer left, and ends by
            itself once the trainer has closed the run, or is dead and nothing is left to do.
        budget: bytes on disk for this rank, like "20GiB"; None prunes nothing.
        compact: whether it makes checkpoints from the log, so that the trainer need not stop for them.
        store: URL that sealed segments and checkpoints are shipped to.
        interval: between two evaluations, like "10s".
    """

    mode: Literal["thread", "process"] = "thread"
    budget: str | int | None = None
    compact: bool = False
    store: str | None = None
    interval: str = "10s"

    def __post_init__(self) -> None:
        if self.mode not in ("thread", "process"):
            raise UsageError(f'monitor={self.mode!r}: use "thread", "process", or a Monitor(...)')
        if self.budget_bytes is not None and self.budget_bytes < 1:
            raise UsageError(f"budget={self.budget!r}: at least a byte")
        if self.interval_seconds <= 0:
            raise UsageError(f"interval={self.interval!r}: more than nothing")

    @property
    def budget_bytes(self) -> int | None:
        """The budget as a number."""
        return self.budget if self.budget is None or isinstance(self.budget, int) else parse_bytes(self.budget, "budget")

    @property
    def interval_seconds(self) -> float:
        """The interval as a number."""
        return parse_seconds(self.interval, "interval")
