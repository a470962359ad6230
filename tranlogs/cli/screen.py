"""Output for people (tables that fit a terminal, sizes and times in words) and for programs (JSON)."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ..base import lazy_numpy as np
from ..base.notes import Note
from ..base.quantities import count, format_bytes
from ..base.types import Array, Extension, SparseArray

__all__ = ["console", "count", "facts", "moment", "number", "problem", "size", "table"]

size = format_bytes

_PADDING = re.compile(r" +$", re.MULTILINE)
_UNLIMITED = 1 << 16  # columns
_FORMATS = {"float64": "d", "float32": "f", "float16": "e", "int64": "q", "int32": "i", "int16": "h", "int8": "b"}
_FORMATS |= {"uint64": "Q", "uint32": "I", "uint16": "H", "uint8": "B", "bool": "?"}


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
    found = Console(highlight=False, emoji=False)
    if found.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return found
    return Console(highlight=False, emoji=False, width=_UNLIMITED, file=_PaddingFreeOutput())  # type: ignore[arg-type]


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


def print_json(content: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(to_json(content), indent=2, allow_nan=False))


def to_json(value: Any) -> Any:
    """Return a value made of what JSON has: dicts, lists, strings, finite numbers, booleans and None."""
    if isinstance(value, Note):
        return value.as_dict()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (complex, Path)):
        return str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytes": len(value)}
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((to_json(item) for item in value), key=repr)
    if isinstance(value, (Array, SparseArray)):
        return _array(value)
    if isinstance(value, Extension):
        return {value.tag: to_json(value.value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, np.generic):
        return to_json(value.item())
    return _array(value) if isinstance(value, np.ndarray) else str(value)


def _array(value: Array | SparseArray | np.ndarray[Any, Any]) -> Any:
    """Return the number for a scalar, since a learning rate may be a tensor; else dtype and shape."""
    dtype = value.dtype if isinstance(value.dtype, str) else value.dtype.name
    if math.prod(value.shape) == 1 and not isinstance(value, SparseArray) and dtype in _FORMATS and value.data.nbytes:
        (found,) = struct.unpack(f"<{_FORMATS[dtype]}", value.data.tobytes())
        return to_json(found)
    return {"dtype": dtype, "shape": list(value.shape)}
