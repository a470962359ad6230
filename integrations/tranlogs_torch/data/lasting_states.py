"""The position of a loader in a boundary: some integers, and a head that changes once in an epoch."""

from __future__ import annotations

from typing import Any

from tranlogs.records import Fixed

_OUTSIDE = ("epoch", "batch", "taken", "order", "index", "length")  # of the head: what each batch changes, and others read
_LASTING = ("opened", "workers", "entered")  # random states of 8 kB each; so is that of the index, when the first draw was made


class LastingStates:
    """Wraps the lasting random states of one loader's positions, so that each is encoded once.

    Nobody writes to them, so the same object is the same state.
    """

    def __init__(self) -> None:
        self._known: dict[str, Fixed] = {}

    def split(self, position: dict[str, Any]) -> dict[str, Any]:
        """Return a position for a boundary, with all that does not move in its head; `join_position` is the inverse."""
        head = {name: value for name, value in position.items() if name not in _OUTSIDE}
        head |= {name: self._fixed(name, head[name]) for name in _LASTING if head.get(name) is not None}
        found = {name: position[name] for name in _OUTSIDE}
        if (index := found["index"]) is not None and "first_draw" in index:
            found["index"] = index | {"first_draw": self._fixed("first_draw", index["first_draw"])}
        return found | {"head": Fixed(head)}

    def _fixed(self, name: str, value: Any) -> Fixed:
        known = self._known.get(name)
        if known is None or known.value is not value:
            known = self._known[name] = Fixed(value)
        return known


def join_position(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return the position of a boundary."""
    head: dict[str, Any] = recorded["head"]
    return {name: recorded[name] for name in _OUTSIDE} | head
