"""Storage of evaluations in the catalog: the values from which the next evaluation continues, and a history for curves.

The history is thinned as it grows, so that it covers months: every second row of its older half is deleted.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tranlogs.catalog import EvaluationRow, Tables, evaluation_key
from tranlogs.retention.segment_value_rows import pack_array
from tranlogs.retention.value_decay import SegmentValues

_ROWS_MAX = 512
_ROWS_MIN = 16
_BYTES_MAX = 32 << 20  # of all rows together


def write(tables: Tables, row: EvaluationRow, worth: SegmentValues, protected: dict[int, bool]) -> None:
    """Add an evaluation, and thin the history."""
    is_protected = np.array([protected.get(int(i), True) for i in worth.ordinals], bool)
    row = replace(
        row,
        ordinals=pack_array(worth.ordinals, "<i8"),
        values=pack_array(worth.values, "<f8"),
        protected=pack_array(is_protected, "u1"),
    )
    tables.put(evaluation_key(row.number), row)
    keys = tables.keys("evaluation/")
    rows_max = max(_ROWS_MIN, min(_ROWS_MAX, _BYTES_MAX // (len(row.ordinals) + len(row.values) + len(row.protected) + 256)))
    if len(keys) > rows_max:
        for key in keys[1 : len(keys) // 2 : 2]:
            tables.delete(key)
    for key in tables.keys("evaluation/")[: -2 * rows_max]:
        tables.delete(key)
