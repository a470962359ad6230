"""The daemon's store: opened once, and shared by the journals that are shipped to it."""

from __future__ import annotations

from tranlogs.base.clock import Clock
from tranlogs.journal import JournalPaths
from tranlogs.shipping import Archiver, Throttle, journal_prefix
from tranlogs.stores import TimeoutStore, open_store

from ..settings import StoreSettings


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
