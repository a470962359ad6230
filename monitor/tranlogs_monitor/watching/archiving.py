"""The daemon's store: opened once, and shared by the journals that are shipped to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tranlogs.base.clock import Clock
from tranlogs.journal import JournalPaths
from tranlogs.shipping import Archiver, ShippingSettings, Throttle, journal_prefix
from tranlogs.stores import STALL_SECONDS, TimeoutStore, open_store


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where and how journals are shipped.

    Attributes:
        url: address of the store; each run has a folder of its name there.
        shipping: how each journal is shipped.
        bytes_per_second: bandwidth of all journals together; None for no limit.
        senders: number of parts that are sent at once, of all journals together.
        stall_seconds: time without a byte after which a call is abandoned.
    """

    url: str
    shipping: ShippingSettings = field(default_factory=ShippingSettings)
    bytes_per_second: float | None = None
    senders: int = 2
    stall_seconds: float = STALL_SECONDS


class ArchiverFactory:
    """Makes an archiver for each journal.

    Raises:
        StoreRefused: the store's address is wrong.
    """

    def __init__(self, settings: StoreSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._store = TimeoutStore(open_store(settings.url), settings.stall_seconds)
        self._throttle = Throttle(settings.bytes_per_second, settings.senders)

    def start_archiver(self, paths: JournalPaths) -> Archiver:
        """Start to ship a journal."""
        archiver = Archiver(paths, self._store, journal_prefix(paths), self._settings.shipping, self._clock, self._throttle)
        archiver.start()
        return archiver

    def close(self) -> None:
        """Close the store, after its archivers."""
        self._store.close()
