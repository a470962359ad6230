"""Output for people: tables that fit a terminal, and sizes and times in words."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ...base.quantities import count, format_bytes

__all__ = ["console", "count", "facts", "moment", "number", "problem", "size", "table"]

size = format_bytes

_PADDING = re.compile(r" +$", re.MULTILINE)
_UNLIMITED = 1 << 16  # columns


class _PaddingFreeOutput:
    """stdout without the spaces that fill the lines of a table up."""

    def write(self, text: str) -> int:
        sys.stdout.write(_PADDING.sub("", text))
        return len(text)

    def flush(self) -> None:
        sys.stdout.flush()

    def isatty(self) -> bool:
        return sys.stdout.isatty()


def console() -> Console:
    """Return the console that prints to stdout. Where stdout is no terminal, no line is wrapped unless COLUMNS is set."""
    found = Console(highlight=False)
    if found.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return found
    return Console(highlight=False, width=_UNLIMITED, file=_PaddingFreeOutput())  # type: ignore[arg-type]


def facts(rows: Sequence[tuple[str, object]]) -> Table:
    """Return a grid of names and values, one line each."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, value if isinstance(value, Text) else Text(str(value)))
    return grid


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, numbers: Sequence[str] = ()) -> Group:
    """Return a table below its title; the columns named in `numbers` are right-aligned."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in columns:
        made.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    for row in rows:
        made.add_row(*[cell if isinstance(cell, Text) else Text(str(cell)) for cell in row])
    return Group(Text(title, style="bold", overflow="fold"), made)  # rich would wrap a title of its own at the table's width


def problem(message: str) -> Text:
    """Return a problem, with its heading in red."""
    return Text.assemble(("problem: ", "bold red"), message)


def moment(seconds: float) -> str:
    """Return a time of the catalog (seconds since 1970) as local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "-"


def number(value: object) -> str:
    """Return a number for a column, with floats rounded to four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
