"""What a sealed segment is worth: the theory of value change of the TranLogs talk.

    V_i = (-t / t_e) * u_(i-1) - alpha_i          u_i = u_(i-1) + V_i

u is a segment's value: 1 when it is sealed, never below 0. At evaluation i, t is the time since the one before (for a
segment's first one: since it was sealed), t_e the expected life of a log, and alpha_i what the events in between take away:
a newer checkpoint covers the segment, newer segments were sealed, a store has it. The value says who goes first when space
is short; it never makes anything go by itself.

Read this way, a value between two events falls as (1 - t/t_e) an evaluation, which tends to exp(-age / t_e) where evaluations
are frequent: how often the monitor looks hardly matters. docs/decisions.md has the readings that were rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..base.errors import UsageError
from ..catalog import CheckpointRow, SegmentRow, Watermarks

Values = npt.NDArray[np.float64]

LIFE_SECONDS_UNKNOWN = 600.0  # where there are not yet two checkpoints to take the interval of


@dataclass(frozen=True, slots=True)
class Decay:
    """The settings of the formula.

    Attributes:
        life_seconds: t_e; None for the median interval between checkpoints.
        covered: taken for each new checkpoint that covers a segment.
        newer: taken for each newer segment.
        archived: taken once the store has it.
        persisted: taken once the store calls it durable.
    """

    life_seconds: float | None = None
    covered: float = 0.5
    newer: float = 0.01
    archived: float = 0.2
    persisted: float = 0.1

    def __post_init__(self) -> None:
        if self.life_seconds is not None and not self.life_seconds > 0:
            raise UsageError(f"the life of a log, {self.life_seconds} s, must be more than nothing")
        for name in ("covered", "newer", "archived", "persisted"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"alpha {name}={getattr(self, name)}: give a number from 0 to 1")


@dataclass(frozen=True, slots=True)
class Worth:
    """Values of sealed segments at one evaluation.

    Attributes:
        at: when, in seconds since 1970.
        ordinals: of the segments, ascending.
        values: of each.
        archived: the step up to which a store had them.
        persisted: the step up to which it called them durable.
    """

    at: float
    ordinals: npt.NDArray[np.int64]
    values: Values
    archived: int = 0
    persisted: int = 0

    def of(self, ordinal: int) -> float | None:
        """A segment's value; None for one that was not sealed then."""
        i = int(np.searchsorted(self.ordinals, ordinal))
        return float(self.values[i]) if i < len(self.ordinals) and self.ordinals[i] == ordinal else None

    def as_dict(self) -> dict[int, float]:
        """By ordinal."""
        return dict(zip(self.ordinals.tolist(), self.values.tolist()))


def life_of(decay: Decay, checkpoints: Sequence[CheckpointRow]) -> float:
    """t_e in seconds."""
    if decay.life_seconds is not None:
        return decay.life_seconds
    times = np.sort([row.created_at for row in checkpoints])
    return float(max(np.median(np.diff(times)), 1.0)) if len(times) > 1 else LIFE_SECONDS_UNKNOWN


def evaluate(decay: Decay, segments: Sequence[SegmentRow], checkpoints: Sequence[CheckpointRow], marks: Watermarks,
             before: Worth | None, now: float) -> Worth:  # fmt: skip
    """Values of the sealed segments now (pure).

    Args:
        decay: settings.
        segments: all, in any state.
        checkpoints: the published ones that the newest timeline leads through.
        marks: how far the store has come.
        before: the evaluation before this one.
        now: seconds since 1970.
    """
    sealed = sorted((row for row in segments if row.state == "sealed"), key=lambda row: row.ordinal)
    ordinals = _column(sealed, "ordinal")
    last_steps, last_sequences = _column(sealed, "last_step"), _column(sealed, "last_sequence")
    is_known = np.isin(ordinals, before.ordinals) if before is not None else np.zeros(len(sealed), bool)
    since, values = np.array([row.sealed_at for row in sealed], np.float64), np.ones(len(sealed))
    if before is not None:
        since[is_known] = before.at
        values[is_known] = before.values[np.searchsorted(before.ordinals, ordinals[is_known])]
    taken = decay.newer * _count_after(~is_known)
    for row in checkpoints:
        taken += decay.covered * ((row.created_at > since) & (row.sequence >= last_sequences))
    for reached, was, weight in ((marks.archived, before.archived if before else 0, decay.archived),
                                 (marks.persisted, before.persisted if before else 0, decay.persisted)):  # fmt: skip
        taken += weight * ((last_steps <= reached) & ~(is_known & (last_steps <= was)))
    seconds = np.maximum(now - since, 0.0)  # a clock that was set back makes nothing worth more
    change = -seconds / life_of(decay, checkpoints) * values - taken
    return Worth(now, ordinals, np.maximum(values + change, 0.0), marks.archived, marks.persisted)


def _column(rows: Sequence[SegmentRow], name: str) -> npt.NDArray[np.int64]:
    return np.array([getattr(row, name) for row in rows], np.int64)


def _count_after(is_new: npt.NDArray[np.bool_]) -> Values:
    """For each place, how many new ones stand behind it."""
    return np.asarray(is_new[::-1].cumsum()[::-1] - is_new, np.float64)
