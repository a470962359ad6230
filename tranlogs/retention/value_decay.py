"""Value decay: what it is worth to keep a sealed segment, by the theory of value change of the TranLogs talk .

    V_i = (-t / t_e) * u_(i-1) - alpha_i          u_i = u_(i-1) + V_i

u is a segment's value: 1 when the segment is sealed, and never below 0. At evaluation i, t is the time since the previous
evaluation (for a segment's first one, since it was sealed), t_e is the expected life of a log, and alpha_i is what the events
since then take away: a newer checkpoint covers the segment, newer segments were sealed, a store has it. The value decides
which segment is pruned first when space is short. A low value alone never prunes anything.

Between two events a value thus falls by the factor (1 - t/t_e) at each evaluation. With frequent evaluations this tends to
exp(-age / t_e), so how often the monitor evaluates hardly matters. docs/decisions.md lists the readings that were rejected.

The monitor that holds the monitor's lock writes each evaluation to `evaluations.jsonl`, from which the next one continues and
curves are drawn: a checksum in hex, a space, and JSON a line. A line that is damaged or was cut off is skipped. The history is
thinned as it grows, so that it covers months: every second line of its older half is dropped, and the file is replaced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from ..base import lazy_numpy as np
from ..base.atomic_files import publishing
from ..base.errors import UsageError
from ..catalog import CheckpointRow, SegmentRow, Watermarks

if TYPE_CHECKING:
    import numpy.typing as npt

    Values = npt.NDArray[np.float64]

EVALUATIONS_NAME = "evaluations.jsonl"
_ROWS_MAX = 512
_ROWS_MIN = 16
_SEGMENTS_MAX = 1 << 19  # of all rows together: 15 MB in the file
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


# The history of evaluations.


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """An evaluation by the monitor."""

    number: int
    at: float
    committed: int = 0
    synced: int = 0
    archived: int = 0
    persisted: int = 0
    log_bytes: int = 0
    checkpoint_bytes: int = 0
    budget_bytes: int | None = None
    ordinals: Sequence[int] = ()  # of the sealed segments
    values: Sequence[float] = ()  # of these segments
    protected: Sequence[int] = ()  # the ordinals of those that are protected


def read_values(row: EvaluationRow) -> SegmentValues:
    """Return the values that a row holds."""
    ordinals, values = np.array(row.ordinals, np.int64), np.array(row.values, np.float64)
    return SegmentValues(row.at, ordinals, values, row.archived, row.persisted)


def read_newest_first(folder: Path) -> Iterator[EvaluationRow]:
    """Yield the evaluations of the journal in a folder, the newest first."""
    try:
        lines = (folder / EVALUATIONS_NAME).read_bytes().splitlines()
    except OSError:
        return
    for line in reversed(lines):
        row = _parse(line)
        if row is not None:
            yield row


def read_evaluations(folder: Path) -> list[EvaluationRow]:
    """Return the evaluations of the journal in a folder, oldest first."""
    return list(read_newest_first(folder))[::-1]


def append_evaluation(folder: Path, row: EvaluationRow, history: Sequence[EvaluationRow]) -> list[EvaluationRow]:
    """Add an evaluation to the file of a journal's folder, and thin the history; return the new history, oldest first.

    Raises:
        OSError: the file cannot be written.
    """
    path, rows = folder / EVALUATIONS_NAME, [*history, row]
    rows_max = max(_ROWS_MIN, min(_ROWS_MAX, _SEGMENTS_MAX // max(len(row.ordinals), 1)))
    if len(rows) <= rows_max:
        with path.open("ab") as file:
            file.write(_pack(row))
        return rows
    del rows[1 : len(rows) // 2 : 2]
    del rows[: -2 * rows_max]
    with publishing(path) as temporary:
        temporary.write_bytes(b"".join(map(_pack, rows)))
    return rows


def _pack(row: EvaluationRow) -> bytes:
    body = json.dumps(asdict(row), separators=(",", ":")).encode()
    return b"\n" + xxhash.xxh3_64_hexdigest(body).encode() + b" " + body  # a line that was cut off ends before the next one


def _parse(line: bytes) -> EvaluationRow | None:
    checksum, _, body = line.partition(b" ")
    if checksum != xxhash.xxh3_64_hexdigest(body).encode():
        return None
    try:
        return EvaluationRow(**json.loads(body))
    except (ValueError, TypeError):
        return None
