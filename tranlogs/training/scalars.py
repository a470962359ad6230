"""Scalars that the training loop logs (a loss, an accuracy): in the log with their unit, and in full in each checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.config import CURVE_POINTS_MAX, SCALARS_MAX
from ..base.errors import UsageError

Curve = tuple[list[int], list[float]]  # steps, values


class ScalarHistory:
    """Curves by name. Recovery restores them without gaps and without duplicates.

    A curve that has too many points loses every second one of its older half, so that each checkpoint stays small.
    """

    def __init__(self) -> None:
        self._pending: dict[str, float] = {}
        self.curves: dict[str, Curve] = {}

    def note(self, **scalars: float) -> None:
        """Keep scalars with the running unit; the last value of a name counts.

        Raises:
            UsageError: a value is no number, or there are too many names.
        """
        for name, value in scalars.items():
            try:
                self._pending[name] = float(getattr(value, "item", lambda v=value: v)())
            except (TypeError, ValueError, RuntimeError):
                raise UsageError(f"log_scalars({name}=...): expected one number, not {value!r:.60}") from None
        if len(self._pending.keys() | self.curves.keys()) > SCALARS_MAX:
            raise UsageError(f"log_scalars(): more than {SCALARS_MAX} names")

    def commit(self, step: int) -> dict[str, float]:
        """Return the scalars of the unit, which is complete. They belong to `step` now."""
        if not self._pending:
            return {}
        noted, self._pending = self._pending, {}
        self.extend([(step, noted)])
        return noted

    def extend(self, noted: list[tuple[int, dict[str, float]]]) -> None:
        """Append what was noted at some steps."""
        for step, scalars in noted:
            for name, value in scalars.items():
                steps, values = self.curves.setdefault(name, ([], []))
                steps.append(step)
                values.append(value)
                if len(steps) > CURVE_POINTS_MAX:
                    older = slice(1, CURVE_POINTS_MAX // 2, 2)
                    del steps[older], values[older]

    def pack(self) -> dict[str, Any]:
        """Return all scalars in the form that a checkpoint holds."""
        return {name: (np.array(s, np.int64), np.array(v, np.float64)) for name, (s, v) in self.curves.items()}

    def unpack(self, packed: dict[str, Any]) -> None:
        """Set the scalars from a checkpoint."""
        self._pending = {}
        self.curves = {name: (steps.tolist(), values.tolist()) for name, (steps, values) in packed.items()}
