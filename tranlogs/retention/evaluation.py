"""The rows in which a monitor writes down its evaluations: values of segments as base64 of little-endian numbers."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..catalog import EvaluationRow, Tables
from .value_decay import Worth

_PREFIX = "evaluation/"


def packed(array: npt.NDArray[Any], dtype: str) -> str:
    """An array for a row."""
    return base64.b64encode(np.asarray(array, dtype).tobytes()).decode()


def unpacked(text: str, dtype: str) -> npt.NDArray[Any]:
    """The inverse."""
    return np.frombuffer(base64.b64decode(text), dtype)


def worth_of(row: EvaluationRow) -> Worth:
    """The values that a row holds."""
    return Worth(row.at, unpacked(row.ordinals, "<i8").astype(np.int64), unpacked(row.values, "<f8").astype(np.float64),
                 row.archived, row.persisted)  # fmt: skip


def protected_of(row: EvaluationRow) -> dict[int, bool]:
    """Whether each sealed segment was protected, by ordinal."""
    return dict(zip(unpacked(row.ordinals, "<i8").tolist(), unpacked(row.protected, "u1").astype(bool).tolist()))


def last_row(tables: Tables) -> EvaluationRow | None:
    """The newest evaluation."""
    return next(newest_rows(tables), None)


def newest_rows(tables: Tables) -> Iterator[EvaluationRow]:
    """Evaluations, the newest first."""
    for key in reversed(tables.keys(_PREFIX)):
        row = tables.get(key, EvaluationRow)
        if row is not None:
            yield row
