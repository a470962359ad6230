"""The log as a row of squares, coloured by value and protection, with the checkpoints among them as diamonds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tranlogs.base.quantities import format_bytes
from tranlogs.catalog import CheckpointRow, SegmentRow

from ...watching.watch import Seen

_CELLS_MAX = 360
_TABLE_ROWS_MAX = 100
_LEVELS = 10  # of colour


@dataclass(frozen=True, slots=True)
class Mark:
    """A square or a diamond.

    Attributes:
        kind: its classes in static/page.css.
        words: what it stands for.
    """

    kind: str
    words: str


LEGEND = (
    Mark("cell free v10", "worth much"),
    Mark("cell free v1", "worth little, goes first"),
    Mark("cell protected v8", "protected"),
    Mark("cell open", "being written, or ready"),
    Mark("cell retired", "given up"),
    Mark("diamond", "checkpoint"),
    Mark("diamond anchor", "recovery begins here"),
)


@dataclass(frozen=True, slots=True)
class SegmentLine:
    """A sealed segment in numbers.

    Attributes:
        ordinal: its number.
        first_step: the first step that it holds.
        last_step: the last one.
        size: its bytes on disk.
        value: its value at the last evaluation; None if it has none yet.
        standing: whether it is protected, may go, or goes, and why.
    """

    ordinal: int
    first_step: int
    last_step: int
    size: int
    value: float | None
    standing: str


@dataclass(frozen=True, slots=True)
class Log:
    """The log of a journal, as its page shows it.

    Attributes:
        marks: squares and diamonds, oldest first.
        segments: the newest sealed segments, the newest one first.
        sealed: the number of all sealed segments.
        protected: the number of those that recovery to the newest step needs.
        legend: the meaning of the colours.
    """

    marks: list[Mark]
    segments: list[SegmentLine]
    sealed: int
    protected: int
    legend: tuple[Mark, ...] = LEGEND


def log_of(seen: Seen) -> Log:
    """Return what the page shows of a journal's log."""
    sealed = sorted((row for row in seen.rows.segments if row.state == "sealed"), key=lambda row: row.ordinal, reverse=True)
    lines = [
        SegmentLine(row.ordinal, row.base_step + 1, row.last_step, row.size, seen.worth.of(row.ordinal), _standing(seen, row))
        for row in sealed[:_TABLE_ROWS_MAX]
    ]
    return Log(marks_of(seen), lines, len(sealed), sum(seen.protected.values()))


def marks_of(seen: Seen) -> list[Mark]:
    """Return segments and checkpoints in the order of the log, oldest first; a square holds several segments of a long log."""
    segments = sorted(seen.rows.segments, key=lambda row: row.ordinal)
    size = -(-len(segments) // _CELLS_MAX) or 1
    groups = _grouped(segments, size)
    checkpoints = sorted(seen.rows.checkpoints, key=lambda row: row.sequence)
    marks: list[Mark] = []
    for group in groups:
        while checkpoints and group[0].state != "ready" and checkpoints[0].sequence <= group[0].base_sequence:
            marks.append(_diamond(seen, checkpoints.pop(0)))
        marks.append(_square(seen, group))
    last = max((i for i, group in enumerate(groups) if group[0].state in ("sealed", "open")), default=-1)
    place = len(marks) - (len(groups) - 1 - last)
    marks[place:place] = [_diamond(seen, row) for row in checkpoints]
    return marks


def _grouped(segments: Sequence[SegmentRow], size: int) -> list[list[SegmentRow]]:
    """Divide neighbours that are in the same state into groups of at most `size`."""
    groups: list[list[SegmentRow]] = []
    for row in segments:
        if groups and len(groups[-1]) < size and groups[-1][0].state == row.state:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _square(seen: Seen, group: Sequence[SegmentRow]) -> Mark:
    first = group[0]
    if first.state != "sealed":
        kind = "cell retired" if first.state == "retired" else "cell open"
        words = {"open": "is being written", "ready": "is ready to be written", "retired": "was given up"}[first.state]
        return Mark(kind, f"segment {first.ordinal}: {words}, {format_bytes(sum(row.size for row in group))}")
    values = [seen.worth.of(row.ordinal) or 0.0 for row in group]
    value = sum(values) / len(values)
    goes = first.file in seen.pruning.reasons
    is_protected = any(seen.protected.get(row.ordinal, True) for row in group)
    kind = "retired" if goes else "protected" if is_protected else "free"
    name = f"segment {first.ordinal}" if len(group) == 1 else f"segments {first.ordinal} to {group[-1].ordinal}"
    words = f"{name}: steps {first.base_step + 1:,} to {group[-1].last_step:,}, value {value:.2f}, {_standing(seen, first)}"
    return Mark(f"cell {kind} v{round(min(value, 1.0) * _LEVELS)}", words)


def _diamond(seen: Seen, row: CheckpointRow) -> Mark:
    is_anchor = seen.anchor is not None and row.name == seen.anchor.name
    goes = seen.pruning.reasons.get(row.name)
    words = f"checkpoint of step {row.step:,}, {format_bytes(row.nbytes)}"
    words += f", goes: {goes}" if goes else ", recovery begins here" if is_anchor else ""
    return Mark("diamond anchor" if is_anchor else "diamond gone" if goes else "diamond", words)


def _standing(seen: Seen, row: SegmentRow) -> str:
    why = seen.pruning.reasons.get(row.file)
    if why is not None:
        return f"given up: {why}"
    return "protected" if seen.protected.get(row.ordinal, True) else "may go"
