"""The store of a daemon: opened once, shared by the journals that are shipped there."""

from __future__ import annotations

from dataclasses import dataclass, field

from tranlogs.base.clock import Clock
from tranlogs.journal import JournalPaths
from tranlogs.shipping import Archiver, Limits, Throttle, place_of
from tranlogs.stores import STALL_SECONDS, PatientStore, open_store


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where journals are shipped to, and how.

    Attributes:
        url: of the store; each run has a folder of its name there.
        limits: of each journal.
        bytes_per_second: of all journals together.
        senders: parts that are sent at once, of all journals together.
        stall_seconds: after so long without a byte a call is given up.
    """

    url: str
    limits: Limits = field(default_factory=Limits)
    bytes_per_second: float | None = None
    senders: int = 2
    stall_seconds: float = STALL_SECONDS


class Archives:
    """Makes an archiver for each journal.

    Raises:
        StoreRefused: the address is none.
    """

    def __init__(self, settings: StoreSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._store = PatientStore(open_store(settings.url), settings.stall_seconds)
        self._throttle = Throttle(settings.bytes_per_second, settings.senders)

    def begin(self, paths: JournalPaths) -> Archiver:
        """Ship a journal, from now on."""
        archiver = Archiver(paths, self._store, place_of(paths), self._settings.limits, self._clock, self._throttle)
        archiver.start()
        return archiver

    def close(self) -> None:
        """Let go of the store, after its archivers."""
        self._store.close()
