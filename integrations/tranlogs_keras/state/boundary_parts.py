"""The parts of a boundary's body that seldom change: an unchanged value goes in as the same `Fixed`, to be encoded once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tranlogs.records import Fixed
from tranlogs.training import LoopRecord


class Parts:
    """Wraps values by name. A value that is the same object as the last one under its name has not changed."""

    def __init__(self) -> None:
        self._fixed: dict[str, Fixed] = {}

    def of(self, name: str, value: Any) -> Fixed:
        """Wrap a value."""
        known = self._fixed.get(name)
        if known is None or known.value is not value:
            known = self._fixed[name] = Fixed(value)
        return known

    def under(self, prefix: str, values: dict[str, Any]) -> dict[str, Fixed]:
        """Several values as parts of their own; `found_under` is the inverse."""
        return {prefix + name: self.of(prefix + name, value) for name, value in values.items()}


def found_under(prefix: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the values that a body holds as parts of their own."""
    return {name.removeprefix(prefix): value for name, value in body.items() if name.startswith(prefix)}


def find_place(body: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the number of the loop of a boundary, its epoch, and the number of its batches that are done.

    The epoch of a loop, or of a fit, that has ended is its last one.
    """
    position, loop = body["position"], LoopRecord.read(body.get("loop"))
    epoch = position["epoch"] - position["is_finished"]  # that is of a fit
    epoch = loop.find_epoch(epoch, position["batch"]) if loop.count else epoch
    return max(loop.count, 1), epoch, position["total"] - loop.start.get("total", 0)
