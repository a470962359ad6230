"""The evaluations of a journal by a monitor: its own file, from which the next evaluation continues and curves are drawn.

`evaluations.jsonl` has one line for each evaluation: a checksum in hex, a space, and JSON. Only the monitor that holds the
monitor's lock writes it. A line that is damaged or was cut off is skipped. The history is thinned as it grows, so that it
covers months: every second line of its older half is dropped, and the file is replaced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import xxhash

from ..base import lazy_numpy as np
from ..base.atomic_files import publishing
from .value_decay import SegmentValues

EVALUATIONS_NAME = "evaluations.jsonl"
_ROWS_MAX = 512
_ROWS_MIN = 16
_SEGMENTS_MAX = 1 << 19  # of all rows together: 15 MB in the file


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


def append(folder: Path, row: EvaluationRow, history: Sequence[EvaluationRow]) -> list[EvaluationRow]:
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
