"""Summary of a monitor's records for the screen: the monitor's process, bytes and budget, and the values of segments."""

from __future__ import annotations

from itertools import groupby

from rich.text import Text

from ...base.quantities import count, format_bytes, format_seconds
from ...retention.evaluations import EvaluationRow, read_protected, read_values
from .survey import Survey

_HEIGHTS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_BAR = 24  # characters
_SEGMENTS_MAX = 48


def describe_monitor(found: Survey) -> list[tuple[str, object]]:
    """Return names and values, one line each; none if no monitor has ever watched the journal."""
    rows: list[tuple[str, object]] = []
    last = found.evaluations[-1] if found.evaluations else None
    if found.monitor is not None or last is not None:
        rows.append(("monitor", _describe_process(found, last)))
    if last is not None:
        rows += [("budget", _draw_budget(last)), ("values", _draw_values(last))]
    return rows


def _describe_process(found: Survey, last: EvaluationRow | None) -> str:
    monitor = found.monitor
    who = f"process {monitor.pid} on {monitor.host}" if monitor is not None and monitor.is_alive else "none now"
    return who if last is None else f"{who}; evaluated {format_seconds(max(found.at - last.at, 0.0))} ago"


def _draw_budget(row: EvaluationRow) -> Text | str:
    used = row.log_bytes + row.checkpoint_bytes
    if row.budget_bytes is None:
        return f"{format_bytes(used)}, no budget"
    share = used / row.budget_bytes
    full = round(min(share, 1.0) * _BAR)
    colour = "green" if share <= 1 else "yellow"
    return Text.assemble(
        ("\u2588" * full, colour),
        ("\u2591" * (_BAR - full), "dim"),
        f" {format_bytes(used)} of {format_bytes(row.budget_bytes)} ({100 * share:.0f} %)",
    )


def _draw_values(row: EvaluationRow) -> Text | str:
    """Return a column for each sealed segment, oldest first, as high as its value."""
    protected, values = read_protected(row), read_values(row).as_dict()
    if not values:
        return "no segment is sealed yet"
    shown = list(values.items())[-_SEGMENTS_MAX:]
    text = Text()
    for i, (is_protected, group) in enumerate(groupby(shown, key=lambda pair: protected[pair[0]])):
        text.append("|" if i else "", "dim")
        columns = "".join(_HEIGHTS[round(min(value, 1.0) * (len(_HEIGHTS) - 1))] for _, value in group)
        text.append(columns, "blue" if is_protected else "green")
    many = sum(protected.values())
    return text.append(f" {count(len(values) - many, 'segment')} can be pruned, {many:,} protected (blue)")
