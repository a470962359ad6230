"""How old a segment may become before it is sealed: a setting, or what a monitor asks for, as long as it goes on asking."""

from __future__ import annotations

from ...base.clock import Clock
from ...base.config import CATALOG_SECONDS
from ...base.errors import CorruptCatalog
from ...catalog import Catalog


class SegmentAgeLimit:
    """Looked at by the thread behind the log, which may read the catalog.

    Attributes:
        age_seconds: the limit that is in force; None for none.
    """

    def __init__(self, catalog: Catalog, clock: Clock, configured: float | None) -> None:
        self._catalog, self._clock, self._configured = catalog, clock, configured
        self._looked_at = clock.monotonic() - CATALOG_SECONDS
        self.age_seconds = configured

    def look(self) -> None:
        """Read the request, now and then. One that nobody renews lapses."""
        now = self._clock.monotonic()
        if now - self._looked_at < CATALOG_SECONDS:
            return
        self._looked_at = now
        try:
            request = self._catalog.read(lambda tables: tables.request("seal")) or {}
            asked = float(request["age_seconds"]) if float(request.get("until", 0.0)) > self._clock.now() else None
        except (CorruptCatalog, KeyError, TypeError, ValueError):
            asked = None
        found = [age for age in (self._configured, asked) if age is not None and age > 0]
        self.age_seconds = min(found, default=None)
