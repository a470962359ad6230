"""The other journals of a group in the store: what all of them need to come back together is given up by none."""

from __future__ import annotations

import math

from ...base.clock import Clock
from ...catalog import CheckpointRow, CommonRow
from ...catalog.lineage import is_on_lineage
from ...stores import Store
from ..sending.plan import Look, look_of
from .manifest import read_newest

_LOOK_SECONDS = 30.0  # what was read may be older: it then says too little, which is safe


class Siblings:
    """The journals beside one in its store.

    Args:
        store: where they lie.
        place: of the one, "RUN/rank0".
        clock: of its catalog.
    """

    def __init__(self, store: Store, place: str, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._folder, _, self._name = place.rpartition("/")
        self._steps: list[int] = []
        self._read_at, self._read_for = -math.inf, (0, 0)

    def common(self, look: Look) -> CommonRow | None:
        """The step up to which a checkpoint of each of them is durable in the store; None where there are no others.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        if look.world <= 1:
            return None
        timeline = max((row.number for row in look.timelines), default=1)
        now = self._clock.monotonic()
        if now - self._read_at > _LOOK_SECONDS or self._read_for != (look.world, timeline):
            names = (f"rank{rank}" for rank in range(look.world))
            self._steps = [self._step(f"{self._folder}/{name}", timeline) for name in names if name != self._name]
            self._read_at, self._read_for = now, (look.world, timeline)
        return CommonRow(min(self._steps, default=0), look.world)

    def _step(self, place: str, timeline: int) -> int:
        """0 also where a journal has not come to the timeline of this one: it still goes back to the one before."""
        manifest, _ = read_newest(self._store, place)
        if manifest is None or max((row.number for row in manifest.timelines), default=1) != timeline:
            return 0
        limits = look_of(manifest).limits
        durable = [one.row for one in manifest.checkpoints if one.objects.is_durable]
        return max((row.step for row in durable if isinstance(row, CheckpointRow) and is_on_lineage(row, limits)), default=0)
