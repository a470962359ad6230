"""The log as a row of squares, coloured by value and protection, with checkpoints among them as diamonds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tranlogs.base.quantities import format_bytes
from tranlogs.catalog import CheckpointRow, SegmentRow

from ...watching.watch import Evaluation

_CELLS_MAX = 360
_TABLE_ROWS_MAX = 100
_LEVELS = 10  # of colour


@dataclass(frozen=True, slots=True)
class LogSymbol:
    """A square or a diamond: its classes in static/page.css, and its meaning."""

    kind: str
    words: str


LEGEND = (
    LogSymbol("cell free v10", "high value"),
    LogSymbol("cell free v1", "low value, pruned first"),
    LogSymbol("cell protected v8", "protected"),
    LogSymbol("cell open", "being written, or ready"),
    LogSymbol("cell retired", "pruned"),
    LogSymbol("diamond", "checkpoint"),
    LogSymbol("diamond anchor", "recovery starts here"),
)


@dataclass(frozen=True, slots=True)
class SegmentLine:
    """A sealed segment in numbers. It has no value (None) before its first evaluation.

    `standing` is whether it is protected, can be pruned, or was pruned, and why.
    """

    ordinal: int
    first_step: int
    last_step: int
    size: int
    value: float | None
    standing: str


@dataclass(frozen=True, slots=True)
class Log:
    """The log of a journal, as its page shows it: squares and diamonds, oldest first, and some segments, newest first.

    `sealed` is the number of all sealed segments, `protected` of those that recovery to the newest step needs.
    """

    symbols: list[LogSymbol]
    segments: list[SegmentLine]
    sealed: int
    protected: int
    legend: tuple[LogSymbol, ...] = LEGEND


def describe_log(evaluation: Evaluation) -> Log:
    """Return what the page shows of a journal's log."""
    sealed = sorted(
        (row for row in evaluation.rows.segments if row.state == "sealed"), key=lambda row: row.ordinal, reverse=True
    )
    lines = [
        SegmentLine(
            row.ordinal,
            row.base_step + 1,
            row.last_step,
            row.size,
            evaluation.worth.get(row.ordinal),
            _describe_standing(evaluation, row),
        )
        for row in sealed[:_TABLE_ROWS_MAX]
    ]
    return Log(log_symbols(evaluation), lines, len(sealed), sum(evaluation.protected.values()))


def log_symbols(evaluation: Evaluation) -> list[LogSymbol]:
    """Return segments and checkpoints in the order of the log, oldest first.

    In a long log, a square represents several segments.
    """
    segments = sorted(evaluation.rows.segments, key=lambda row: row.ordinal)
    size = -(-len(segments) // _CELLS_MAX) or 1
    groups = _group_neighbours(segments, size)
    checkpoints = sorted(evaluation.rows.checkpoints, key=lambda row: row.sequence)
    marks: list[LogSymbol] = []
    for group in groups:
        while checkpoints and group[0].state != "ready" and checkpoints[0].sequence <= group[0].base_sequence:
            marks.append(_diamond(evaluation, checkpoints.pop(0)))
        marks.append(_square(evaluation, group))
    last = max((i for i, group in enumerate(groups) if group[0].state in ("sealed", "open")), default=-1)
    place = len(marks) - (len(groups) - 1 - last)
    marks[place:place] = [_diamond(evaluation, row) for row in checkpoints]
    return marks


def _group_neighbours(segments: Sequence[SegmentRow], size: int) -> list[list[SegmentRow]]:
    """Divide neighbours in the same state into groups of at most `size`."""
    groups: list[list[SegmentRow]] = []
    for row in segments:
        if groups and len(groups[-1]) < size and groups[-1][0].state == row.state:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _square(evaluation: Evaluation, group: Sequence[SegmentRow]) -> LogSymbol:
    first = group[0]
    if first.state != "sealed":
        kind = "cell retired" if first.state == "retired" else "cell open"
        words = {"open": "is being written", "ready": "is ready to be written", "retired": "was pruned"}[first.state]
        return LogSymbol(kind, f"segment {first.ordinal}: {words}, {format_bytes(sum(row.size for row in group))}")
    values = [evaluation.worth.get(row.ordinal) or 0.0 for row in group]
    value = sum(values) / len(values)
    reason = first.file in evaluation.pruning.reasons
    is_protected = any(evaluation.protected.get(row.ordinal, True) for row in group)
    kind = "retired" if reason else "protected" if is_protected else "free"
    name = f"segment {first.ordinal}" if len(group) == 1 else f"segments {first.ordinal} to {group[-1].ordinal}"
    steps = f"steps {first.base_step + 1:,} to {group[-1].last_step:,}"
    words = f"{name}: {steps}, value {value:.2f}, {_describe_standing(evaluation, first)}"
    return LogSymbol(f"cell {kind} v{round(min(value, 1.0) * _LEVELS)}", words)


def _diamond(evaluation: Evaluation, row: CheckpointRow) -> LogSymbol:
    is_anchor = evaluation.anchor is not None and row.name == evaluation.anchor.name
    reason = evaluation.pruning.reasons.get(row.name)
    words = f"checkpoint of step {row.step:,}, {format_bytes(row.nbytes)}"
    words += f", pruned: {reason}" if reason else ", recovery starts here" if is_anchor else ""
    return LogSymbol("diamond anchor" if is_anchor else "diamond gone" if reason else "diamond", words)


def _describe_standing(evaluation: Evaluation, row: SegmentRow) -> str:
    why = evaluation.pruning.reasons.get(row.file)
    if why is not None:
        return f"pruned: {why}"
    return "protected" if evaluation.protected.get(row.ordinal, True) else "can be pruned"
