"""Whether a checkpoint is worth making from the log (pure): how much sealed log lies behind the newest one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..base.errors import UsageError
from ..catalog import CheckpointRow, SegmentRow, TimelineRow
from ..catalog.lineage import Limits, trace_lineage


@dataclass(frozen=True, slots=True)
class Compaction:
    """When a monitor makes checkpoints from the log.

    Attributes:
        after_bytes: of sealed log behind the newest checkpoint; None for as many as that checkpoint has.
        seconds_max: that making one may take; it is given up then.
        optimizers: classes that may be imported for it, as for `tranlogs replay --optimizer`.
    """

    after_bytes: int | None = None
    seconds_max: float = 3600.0
    optimizers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.seconds_max <= 0:
            raise UsageError(f"seconds_max={self.seconds_max}: more than 0")

    def is_worth_it(self, behind: int, anchor: CheckpointRow) -> bool:
        """Whether `behind` bytes of sealed log behind the checkpoint `anchor` are enough."""
        return behind >= max(1, anchor.nbytes if self.after_bytes is None else self.after_bytes)


def sealed_behind(segments: Sequence[SegmentRow], anchor: CheckpointRow, timelines: Sequence[TimelineRow]) -> int:
    """Bytes of the sealed segments that lie wholly behind a checkpoint, on the way to the newest timeline."""
    limits = trace_lineage(timelines, max((row.number for row in timelines), default=1))
    behind = (row for row in segments if row.state == "sealed" and row.base_sequence >= anchor.sequence)
    return sum(row.used_bytes for row in behind if row.last_sequence > row.base_sequence and _is_on(row, limits))


def _is_on(row: SegmentRow, limits: Limits) -> bool:
    limit = limits.get(row.timeline, -1)
    return limit is None or row.base_sequence < limit
