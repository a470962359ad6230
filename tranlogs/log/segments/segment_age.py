"""Age limit of the open segment. The limit comes from the settings, or from a request that a monitor renews."""

from __future__ import annotations

from ...base.clock import Clock
from ...base.config import CATALOG_SECONDS
from ...base.errors import CatalogUnavailable, CorruptCatalog
from ...catalog import Catalog


class SegmentAgeLimit:
    """Age of the open segment, and the limit at which the segment is sealed.

    Args:
        catalog: holds the monitor's request.
        clock: the clock.
        configured: the limit in the settings, in seconds; None for no limit.

    Attributes:
        age_seconds: the smaller of the configured and the requested limit; None for no limit.
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

    def read_request(self) -> None:
        """Read the monitor's request, at most once in CATALOG_SECONDS. A request that is not renewed expires."""
        now = self._clock.monotonic()
        if now - self._read_at < CATALOG_SECONDS:
            return
        self._read_at = now
        try:
            request = self._catalog.read(lambda tables: tables.request("seal")) or {}
            asked = float(request["age_seconds"]) if float(request.get("until", 0.0)) > self._clock.now() else None
        except (CorruptCatalog, CatalogUnavailable, KeyError, TypeError, ValueError):
            asked = None
        found = [age for age in (self._configured, asked) if age is not None and age > 0]
        self.age_seconds = min(found, default=None)
