"""Settings of the monitor."""

from __future__ import annotations

from dataclasses import dataclass, field

from tranlogs.retention.prune import Budget
from tranlogs.retention.value_decay import Decay
from tranlogs.shipping import StoreSettings


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """Settings of a daemon, the same for all its runs.

    Attributes:
        budget: limits of each journal.
        decay: settings of the decay of values.
        interval_seconds: time between two evaluations.
        is_dry_run: True to change nothing, and only report.
        waits: True to wait for journals that another monitor watches.
        store: the store to which journals are shipped; None for no store.
        until_closed: True to end the daemon once no trainer is running and nothing is left to do.
    """

    budget: Budget = field(default_factory=Budget)
    decay: Decay = field(default_factory=Decay)
    interval_seconds: float = 10.0
    is_dry_run: bool = False
    waits: bool = False
    store: StoreSettings | None = None
    until_closed: bool = False
