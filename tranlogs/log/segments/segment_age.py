"""How old the open segment may become before it is sealed: a setting, or what a monitor asks for while it keeps asking."""

from __future__ import annotations

from ...base.clock import Clock
from ...base.config import CATALOG_SECONDS
from ...base.errors import CorruptCatalog
from ...catalog import Catalog


class SegmentAgeLimit:
    """The age of the open segment, and the limit that is in force.

    Args:
        catalog: where a monitor puts its request.
        clock: tells the time.
        configured: the limit in the settings, in seconds; None for none.

    Attributes:
        age_seconds: the shorter one of the setting and the request; None for none.
    """

    def __init__(self, catalog: Catalog, clock: Clock, configured: float | None) -> None:
        self._catalog, self._clock, self._configured = catalog, clock, configured
        self._read_at = clock.monotonic() - CATALOG_SECONDS
        self._opened_at = clock.monotonic()
        self.age_seconds = configured

    def segment_opened(self) -> None:
        """Note that a new segment is open from now on."""
        self._opened_at = self._clock.monotonic()

    def is_exceeded(self) -> bool:
        """Return True if the open segment is older than the limit."""
        age = self.age_seconds
        return age is not None and self._clock.monotonic() - self._opened_at > age

    def look(self) -> None:
        """Read the request of the monitor, now and then. A request that is not renewed lapses."""
        now = self._clock.monotonic()
        if now - self._read_at < CATALOG_SECONDS:
            return
        self._read_at = now
        try:
            request = self._catalog.read(lambda tables: tables.request("seal")) or {}
            asked = float(request["age_seconds"]) if float(request.get("until", 0.0)) > self._clock.now() else None
        except (CorruptCatalog, KeyError, TypeError, ValueError):
            asked = None
        found = [age for age in (self._configured, asked) if age is not None and age > 0]
        self.age_seconds = min(found, default=None)
