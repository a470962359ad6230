"""The parts of a loader's position that last for a whole epoch: random states of 10 kB each, which are encoded once."""

from __future__ import annotations

from typing import Any

from tranlogs.records import Fixed

_LASTING = ("opened", "workers", "entered")  # of a position; and of its index, where the first draw was made


class LastingStates:
    """Wraps these states of one loader's positions. Nobody writes to them, so the same object is the same state."""

    def __init__(self) -> None:
        self._known: dict[str, Fixed] = {}

    def of(self, position: dict[str, Any]) -> dict[str, Any]:
        """Return a position with the lasting states as `Fixed`, the same ones as long as the states are the same objects."""
        found = position | {name: self._fixed(name, position[name]) for name in _LASTING if position.get(name) is not None}
        if (index := position.get("index")) is not None and "first_draw" in index:
            found["index"] = index | {"first_draw": self._fixed("first_draw", index["first_draw"])}
        return found

    def _fixed(self, name: str, value: Any) -> Fixed:
        known = self._known.get(name)
        if known is None or known.value is not value:
            known = self._known[name] = Fixed(value)
        return known
