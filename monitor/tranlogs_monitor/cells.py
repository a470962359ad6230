"""The log as a row of squares, coloured by value and protection, with the checkpoints among them as diamonds."""

from __future__ import annotations

from collections.abc import Sequence

from tranlogs.catalog import CheckpointRow, SegmentRow
from tranlogs.quantities import bytes_in_words

from .markup import Child, Markup, el
from .watch import Seen

_CELLS_MAX = 360
_TABLE_ROWS_MAX = 100
_LEVELS = 10  # of colour


def cells(seen: Seen) -> Markup:
    """Segments and checkpoints in the order of the log, oldest first; several in one square where there are very many."""
    segments = sorted(seen.rows.segments, key=lambda row: row.ordinal)
    size = -(-len(segments) // _CELLS_MAX) or 1
    groups = _grouped(segments, size)
    checkpoints = sorted(seen.rows.checkpoints, key=lambda row: row.sequence)
    shown: list[Child] = []
    for group in groups:
        while checkpoints and group[0].state != "ready" and checkpoints[0].sequence <= group[0].base_sequence:
            shown.append(_diamond(seen, checkpoints.pop(0)))
        shown.append(_square(seen, group))
    last = max((i for i, group in enumerate(groups) if group[0].state in ("sealed", "open")), default=-1)
    place = len(shown) - (len(groups) - 1 - last)
    shown[place:place] = [_diamond(seen, row) for row in checkpoints]
    return el("div", shown, class_="cells")


def legend() -> Markup:
    """What the colours mean."""
    parts = [
        (_cell("free v10"), "worth much"), (_cell("free v1"), "worth little, goes first"), (_cell("protected v8"), "protected"),
        (_cell("open"), "being written, or ready"), (_cell("retired"), "given up"), (el("i", class_="diamond"), "checkpoint"),
        (el("i", class_="diamond anchor"), "recovery begins here"),
    ]  # fmt: skip
    return el("p", [el("span", mark, name) for mark, name in parts], class_="legend")


def segment_table(seen: Seen) -> Markup | None:
    """The sealed segments in numbers, the newest first."""
    sealed = [row for row in seen.rows.segments if row.state == "sealed"]
    newest = sorted(sealed, key=lambda row: row.ordinal, reverse=True)[:_TABLE_ROWS_MAX]
    if not newest:
        return None
    rows = [
        el("tr", el("th", row.ordinal, scope="row"), el("td", _steps(row)), el("td", bytes_in_words(row.size), class_="wide"),
           el("td", _value(seen, row)), el("td", _standing(seen, row), class_="quiet"), data_segment=row.ordinal)
        for row in newest
    ]  # fmt: skip
    head = el("tr", [el("th", name, scope="col", class_="wide" if name == "file" else None)
                     for name in ("segment", "steps", "file", "value", "")])  # fmt: skip
    title = f"The same in numbers{'' if len(newest) == len(sealed) else f' (the newest {_TABLE_ROWS_MAX})'}"
    table = el("table", el("thead", head), el("tbody", rows))
    return el("details", el("summary", title), el("div", table, class_="scrolls"))


def _grouped(segments: Sequence[SegmentRow], size: int) -> list[list[SegmentRow]]:
    """So many side by side that are in the same state."""
    groups: list[list[SegmentRow]] = []
    for row in segments:
        if groups and len(groups[-1]) < size and groups[-1][0].state == row.state:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _square(seen: Seen, group: Sequence[SegmentRow]) -> Markup:
    first = group[0]
    if first.state != "sealed":
        kind = "retired" if first.state == "retired" else "open"
        words = {"open": "is being written", "ready": "is ready to be written", "retired": "was given up"}[first.state]
        return _cell(kind, f"segment {first.ordinal}: {words}, {bytes_in_words(sum(row.size for row in group))}")
    values = [seen.worth.of(row.ordinal) or 0.0 for row in group]
    value = sum(values) / len(values)
    goes = first.file in seen.pruning.reasons
    is_protected = any(seen.protected.get(row.ordinal, True) for row in group)
    kind = "retired" if goes else "protected" if is_protected else "free"
    name = f"segment {first.ordinal}" if len(group) == 1 else f"segments {first.ordinal} to {group[-1].ordinal}"
    words = f"{name}: steps {first.base_step + 1:,} to {group[-1].last_step:,}, value {value:.2f}, {_standing(seen, first)}"
    return _cell(f"{kind} v{round(min(value, 1.0) * _LEVELS)}", words)


def _cell(kind: str, words: str | None = None) -> Markup:
    return el("i", class_=f"cell {kind}", title=words)


def _diamond(seen: Seen, row: CheckpointRow) -> Markup:
    is_anchor = seen.anchor is not None and row.name == seen.anchor.name
    goes = seen.pruning.reasons.get(row.name)
    words = f"checkpoint of step {row.step:,}, {bytes_in_words(row.nbytes)}"
    words += f", goes: {goes}" if goes else ", recovery begins here" if is_anchor else ""
    return el("i", class_="diamond anchor" if is_anchor else "diamond gone" if goes else "diamond", title=words)


def _steps(row: SegmentRow) -> str:
    return f"{row.base_step + 1:,} to {row.last_step:,}"


def _value(seen: Seen, row: SegmentRow) -> str:
    value = seen.worth.of(row.ordinal)
    return "-" if value is None else f"{value:.3f}"


def _standing(seen: Seen, row: SegmentRow) -> str:
    why = seen.pruning.reasons.get(row.file)
    if why is not None:
        return f"given up: {why}"
    return "protected" if seen.protected.get(row.ordinal, True) else "may go"
