"""Value decay: what it is worth to keep a sealed segment, by the theory of value change of the TranLogs talk (pure).

    V_i = (-t / t_e) * u_(i-1) - alpha_i          u_i = u_(i-1) + V_i

u is a segment's value: 1 when the segment is sealed, and never below 0. At evaluation i, t is the time since the previous
evaluation (for a segment's first one, since it was sealed), t_e is the expected life of a log, and alpha_i is what the events
since then take away: a newer checkpoint covers the segment, newer segments were sealed, a store has it. The value decides
which segment is pruned first when space is short. A low value alone never prunes anything.

Between two events a value thus falls by the factor (1 - t/t_e) at each evaluation. With frequent evaluations this tends to
exp(-age / t_e), so how often the monitor evaluates hardly matters. docs/decisions.md lists the readings that were rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..base import lazy_numpy as np
from ..base.errors import UsageError
from ..catalog import CheckpointRow, SegmentRow, Watermarks

if TYPE_CHECKING:
    import numpy.typing as npt

    Values = npt.NDArray[np.float64]

LIFE_SECONDS_UNKNOWN = 600.0  # used until there are two checkpoints, whose interval gives the expected life


@dataclass(frozen=True, slots=True)
class Decay:
    """Settings of the formula.

    Attributes:
        life_seconds: t_e; None for the median interval between checkpoints.
        covered: subtracted for each new checkpoint that covers a segment.
        newer: subtracted for each newer segment.
        archived: subtracted once, when the store has the segment.
        persisted: subtracted once, when the store calls the segment durable.
    """

    life_seconds: float | None = None
    covered: float = 0.5
    newer: float = 0.01
    archived: float = 0.2
    persisted: float = 0.1

    def __post_init__(self) -> None:
        if self.life_seconds is not None and not self.life_seconds > 0:
            raise UsageError(f"life_seconds must be positive, got {self.life_seconds}")
        for name in ("covered", "newer", "archived", "persisted"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"alpha {name} must be a number from 0 to 1, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class SegmentValues:
    """Values of the sealed segments (`ordinals`, ascending) at one evaluation, at the time `at` in seconds since 1970.

    The store had the log up to the step `archived`, and called it durable up to `persisted`.
    """

    at: float
    ordinals: npt.NDArray[np.int64]
    values: Values
    archived: int = 0
    persisted: int = 0

    def get(self, ordinal: int) -> float | None:
        """Return the value of a segment; None if it was not sealed at that time."""
        i = int(np.searchsorted(self.ordinals, ordinal))
        return float(self.values[i]) if i < len(self.ordinals) and self.ordinals[i] == ordinal else None

    def as_dict(self) -> dict[int, float]:
        """Return the values, by ordinal."""
        return dict(zip(self.ordinals.tolist(), self.values.tolist()))


def estimate_life_seconds(decay: Decay, checkpoints: Sequence[CheckpointRow]) -> float:
    """Return t_e, the expected life of a log, in seconds."""
    if decay.life_seconds is not None:
        return decay.life_seconds
    times = np.sort([row.created_at for row in checkpoints])
    return float(max(np.median(np.diff(times)), 1.0)) if len(times) > 1 else LIFE_SECONDS_UNKNOWN


def evaluate(
    decay: Decay,
    segments: Sequence[SegmentRow],
    checkpoints: Sequence[CheckpointRow],
    marks: Watermarks,
    before: SegmentValues | None,
    now: float,
) -> SegmentValues:
    """Return the values of the sealed segments now, in seconds since 1970. `before` is None at the first evaluation.

    The checkpoints are the published ones on the newest lineage. The watermarks show what the store has.
    """
    sealed = sorted((row for row in segments if row.state == "sealed"), key=lambda row: row.ordinal)
    ordinals = _column(sealed, "ordinal")
    last_steps, last_sequences = _column(sealed, "last_step"), _column(sealed, "last_sequence")
    is_known = np.isin(ordinals, before.ordinals) if before is not None else np.zeros(len(sealed), bool)
    since, values = np.array([row.sealed_at for row in sealed], np.float64), np.ones(len(sealed))
    if before is not None:
        since[is_known] = before.at
        values[is_known] = before.values[np.searchsorted(before.ordinals, ordinals[is_known])]
    taken = decay.newer * _count_newer(~is_known)
    for row in checkpoints:
        taken += decay.covered * ((row.created_at > since) & (row.sequence >= last_sequences))
    for reached, was, weight in (
        (marks.archived, before.archived if before else 0, decay.archived),
        (marks.persisted, before.persisted if before else 0, decay.persisted),
    ):
        taken += weight * ((last_steps <= reached) & ~(is_known & (last_steps <= was)))
    seconds = np.maximum(now - since, 0.0)  # a clock that was set back must not raise a value
    change = -seconds / estimate_life_seconds(decay, checkpoints) * values - taken
    return SegmentValues(now, ordinals, np.maximum(values + change, 0.0), marks.archived, marks.persisted)


def _column(rows: Sequence[SegmentRow], name: str) -> npt.NDArray[np.int64]:
    return np.array([getattr(row, name) for row in rows], np.int64)


def _count_newer(is_new: npt.NDArray[np.bool_]) -> Values:
    """Return for each segment how many new segments follow it."""
    return np.asarray(is_new[::-1].cumsum()[::-1] - is_new, np.float64)
