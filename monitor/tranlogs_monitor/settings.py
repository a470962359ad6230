"""The monitor's settings, from what an operator writes."""

from __future__ import annotations

from dataclasses import dataclass, field

from tranlogs.retention.budget import Budget
from tranlogs.retention.decay import Decay


@dataclass(frozen=True, slots=True)
class Settings:
    """Of a daemon, the same for all its runs.

    Attributes:
        budget: limits of each journal.
        decay: of values.
        interval_seconds: between two evaluations.
        is_dry_run: whether nothing is changed, and only said.
        waits: whether a journal that another monitor has is waited for.
    """

    budget: Budget = field(default_factory=Budget)
    decay: Decay = field(default_factory=Decay)
    interval_seconds: float = 10.0
    is_dry_run: bool = False
    waits: bool = False
