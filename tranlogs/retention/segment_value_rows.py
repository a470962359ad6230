"""Rows in which a monitor stores its evaluations: values of segments as base64 of little-endian numbers."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..catalog import EvaluationRow, Tables
from .value_decay import SegmentValues

_PREFIX = "evaluation/"


def pack_array(array: npt.NDArray[Any], dtype: str) -> str:
    """Return an array as text for a row."""
    return base64.b64encode(np.asarray(array, dtype).tobytes()).decode()


def unpack_array(text: str, dtype: str) -> npt.NDArray[Any]:
    """Return the array that `pack_array` turned into text."""
    return np.frombuffer(base64.b64decode(text), dtype)


def read_values(row: EvaluationRow) -> SegmentValues:
    """Return the values that a row holds."""
    ordinals = unpack_array(row.ordinals, "<i8").astype(np.int64)
    values = unpack_array(row.values, "<f8").astype(np.float64)
    return SegmentValues(row.at, ordinals, values, row.archived, row.persisted)


def read_protected(row: EvaluationRow) -> dict[int, bool]:
    """Return whether each sealed segment was protected, by ordinal."""
    protected = unpack_array(row.protected, "u1").astype(bool)
    return dict(zip(unpack_array(row.ordinals, "<i8").tolist(), protected.tolist()))


def read_newest_row(tables: Tables) -> EvaluationRow | None:
    """Return the newest evaluation; None if there is none."""
    return next(read_rows_newest_first(tables), None)


def read_rows_newest_first(tables: Tables) -> Iterator[EvaluationRow]:
    """Yield the evaluations, the newest first."""
    for key in reversed(tables.keys(_PREFIX)):
        row = tables.get(key, EvaluationRow)
        if row is not None:
            yield row
