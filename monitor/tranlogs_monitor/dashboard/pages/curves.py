"""The numbers that the charts draw, as JSON: columns over the times of evaluations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tranlogs.retention.lost_work import has_store
from tranlogs.retention.value_decay import EvaluationRow, read_values

from .board import JournalView

_VALUE_CURVES_MAX = 24


def curves(view: JournalView) -> dict[str, Any]:
    """Return watermarks (steps), bytes, and values of segments, for each evaluation.

    A journal without a store has no `archived` and `persisted`, one without a budget no `budget`. Of many segments, some are
    chosen evenly. A segment has null where it did not exist or was not sealed. Scalars are over steps.
    """
    history, names = view.history, ["committed", "synced"]
    if any(has_store(row, None if view.evaluation is None else view.evaluation.rows.store) for row in history):
        names += ["archived", "persisted"]
    nbytes: dict[str, list[int | None]] = {
        "total": [row.log_bytes + row.checkpoint_bytes for row in history],
        "checkpoints": [row.checkpoint_bytes for row in history],
    }
    if any(row.budget_bytes is not None for row in history):
        nbytes["budget"] = [row.budget_bytes for row in history]
    checkpoints = [] if view.evaluation is None else sorted(row.created_at for row in view.evaluation.rows.checkpoints)
    return {
        "journal": view.name,
        "times": [row.at for row in history],
        "steps": {name: [getattr(row, name) for row in history] for name in names},
        "bytes": nbytes,
        "values": _values(history),
        "checkpoints": checkpoints,
        "scalars": _scalars(view),
    }


def _scalars(view: JournalView) -> dict[str, Any]:
    """Return the scalars of the training loop: a column for each name over the steps of all; null where there is no number."""
    progress = None if view.evaluation is None else view.evaluation.progress
    curves = {} if progress is None else progress.curves
    steps = sorted({step for numbers, _ in curves.values() for step in numbers})
    columns = {}
    for name in sort_scalars(curves):
        known = dict(zip(*curves[name], strict=True))
        columns[name] = [value if (value := known.get(step)) is not None and math.isfinite(value) else None for step in steps]
    return {"steps": steps, "columns": columns}


def sort_scalars(names: Iterable[str]) -> list[str]:
    """Return names of scalars with the losses first."""
    return sorted(names, key=lambda name: ("loss" not in name, name))


def _values(history: Sequence[EvaluationRow]) -> list[dict[str, Any]]:
    worths = [read_values(row) for row in history]
    ordinals = np.unique(np.concatenate([worth.ordinals for worth in worths])) if worths else np.empty(0, np.int64)
    if len(ordinals) > _VALUE_CURVES_MAX:
        ordinals = ordinals[np.linspace(0, len(ordinals) - 1, _VALUE_CURVES_MAX).round().astype(int)]
    return [{"segment": n, "values": [worth.get(n) for worth in worths]} for n in ordinals.tolist()]
