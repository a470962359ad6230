"""Decision whether to derive a checkpoint from the log: how much sealed log follows the newest checkpoint (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..base.errors import UsageError
from ..catalog import CheckpointRow, SegmentRow, TimelineRow
from ..catalog.lineage import Limits, trace_lineage


@dataclass(frozen=True, slots=True)
class Compaction:
    """Settings of a monitor that derives checkpoints from the log.

    Attributes:
        after_bytes: bytes of sealed log after the newest checkpoint that make a derived one worthwhile; None for as many
            bytes as that checkpoint has.
        seconds_max: the longest time that deriving one may take. It is given up then.
        optimizers: classes that may be imported for it, as for `tranlogs replay --optimizer`.
    """

    after_bytes: int | None = None
    seconds_max: float = 3600.0
    optimizers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.seconds_max <= 0:
            raise UsageError(f"seconds_max must be positive, got {self.seconds_max}")

    def is_due(self, bytes_after: int, anchor: CheckpointRow) -> bool:
        """Return True if `bytes_after` bytes of sealed log after the checkpoint `anchor` make a derived one worthwhile."""
        return bytes_after >= max(1, anchor.nbytes if self.after_bytes is None else self.after_bytes)


def count_sealed_bytes_after(segments: Sequence[SegmentRow], anchor: CheckpointRow, timelines: Sequence[TimelineRow]) -> int:
    """Return the bytes of the sealed segments that lie wholly after a checkpoint, on the lineage of the newest timeline."""
    limits = trace_lineage(timelines, max((row.number for row in timelines), default=1))
    later = (row for row in segments if row.state == "sealed" and row.base_sequence >= anchor.sequence)
    return sum(row.used_bytes for row in later if row.last_sequence > row.base_sequence and _starts_on(row, limits))


def _starts_on(row: SegmentRow, limits: Limits) -> bool:
    """Return True if a segment starts on a lineage."""
    limit = limits.get(row.timeline, -1)
    return limit is None or row.base_sequence < limit
