"""Settings of the monitor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tranlogs.retention.prune import Budget
from tranlogs.retention.value_decay import Decay
from tranlogs.shipping import ShippingSettings
from tranlogs.stores import STALL_SECONDS


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Settings of the store to which journals are shipped.

    Attributes:
        url: address of the store. Each run has a folder with its name in the store.
        shipping: settings of the shipping of each journal.
        bytes_per_second: bandwidth of all journals together; None for no limit.
        senders: number of parts that are sent at once, of all journals together.
        stall_seconds: time without a byte after which a call is abandoned.
    """

    url: str
    shipping: ShippingSettings = field(default_factory=ShippingSettings)
    bytes_per_second: float | None = None
    senders: int = 2
    stall_seconds: float = STALL_SECONDS


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

    @classmethod
    def of(
        cls,
        budget: Budget,
        decay: Decay,
        interval_seconds: float,
        is_dry_run: bool,
        waits: bool,
        store: dict[str, Any] | None,
        until_closed: bool,
    ) -> DaemonSettings:
        """Make settings from the values of the command line. `store` holds the arguments of `StoreSettings`."""
        return cls(
            budget,
            decay,
            interval_seconds,
            is_dry_run,
            waits,
            None if store is None else StoreSettings(**store),
            until_closed,
        )
