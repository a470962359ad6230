"""Retention in the store for a group of ranks: the checkpoint from which all journals can recover together is kept by each."""

from __future__ import annotations

import math

from ...base.clock import Clock
from ...catalog import CheckpointRow, CommonRow
from ...catalog.lineage import is_on_lineage
from ...stores import Store
from ..items.shipping_plan import JournalContents, list_contents
from ..manifest import read_newest

_CACHE_SECONDS = 30.0  # an older answer names an older step, so that more is kept, which is safe


class GroupRetention:
    """Reads up to which step the other ranks' journals are in the store.

    Args:
        store: the store to which the journals are shipped.
        prefix: this journal's place in the store, "RUN/rank0".
        clock: the catalog's.
    """

    def __init__(self, store: Store, prefix: str, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._folder, _, self._name = prefix.rpartition("/")
        self._steps: list[int] = []
        self._read_at, self._read_for = -math.inf, (0, 0)

    def read_common(self, contents: JournalContents) -> CommonRow | None:
        """Return the step up to which every other rank has a durable checkpoint in the store; None if there are no others.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        if contents.world <= 1:
            return None
        timeline = max((row.number for row in contents.timelines), default=1)
        now = self._clock.monotonic()
        if now - self._read_at > _CACHE_SECONDS or self._read_for != (contents.world, timeline):
            names = (f"rank{rank}" for rank in range(contents.world))
            self._steps = [self._read_step(f"{self._folder}/{name}", timeline) for name in names if name != self._name]
            self._read_at, self._read_for = now, (contents.world, timeline)
        return CommonRow(min(self._steps, default=0), contents.world)

    def _read_step(self, prefix: str, timeline: int) -> int:
        """Return the step of a journal's newest durable checkpoint; 0 if it is on another timeline, since it may go back."""
        manifest, _ = read_newest(self._store, prefix)
        if manifest is None or max((row.number for row in manifest.timelines), default=1) != timeline:
            return 0
        limits = list_contents(manifest).limits
        durable = [item.row for item in manifest.checkpoints if item.objects.is_durable]
        return max((row.step for row in durable if isinstance(row, CheckpointRow) and is_on_lineage(row, limits)), default=0)
