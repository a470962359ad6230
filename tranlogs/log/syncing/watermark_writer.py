"""The log's watermarks in the catalog. Other processes read there how far the log is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...base.clock import Clock
from ...catalog import Catalog, Watermarks


class WatermarkWriter:
    """Writes `committed` and `synced` to the catalog.

    Attributes:
        is_enabled: False while no watermark may be written, because the checkpoint that the log follows is not published yet.
    """

    def __init__(self, catalog: Catalog, clock: Clock, is_patient: Callable[[], bool], *, is_enabled: bool) -> None:
        self._catalog, self._clock, self._is_patient = catalog, clock, is_patient
        self.is_enabled = is_enabled
        self._written_at, self._written_step = 0.0, -1

    def is_due(self, committed: int, seconds: float) -> bool:
        """Return True if `committed` is newer than in the catalog and the last write is more than `seconds` ago."""
        is_late = self._clock.monotonic() - self._written_at > seconds
        return self.is_enabled and is_late and self._written_step < committed

    def write(self, committed: int, synced: int | None) -> None:
        """Write both watermarks.

        Args:
            committed: the newest step that survives the process.
            synced: the newest step that survives power loss; None keeps the value in the catalog.

        Raises:
            LogUnavailable: the disk is full or fails.
        """
        self._written_at = self._clock.monotonic()
        with self._catalog.transaction(self._is_patient) as tables:
            known = tables.get("watermarks", Watermarks) or Watermarks()
            synced = known.synced if synced is None else synced
            now = self._clock.now()
            tables.put("watermarks", replace(known, committed=committed, synced=min(synced, committed), at=now))
        self._written_step = committed
