"""A loop over `steps()`: what its data depend on is known to the script alone, unless a tracked loader gives them."""

from __future__ import annotations

from tranlogs.training import TurnData

from .run_parts import RunParts


class Turns:
    """The turns of one loop over `steps()`.

    Args:
        parts: of the run.
        stateless: whether the script declares that a turn depends on nothing but what the run has.
    """

    def __init__(self, parts: RunParts, *, stateless: bool) -> None:
        self._auxiliary, self._is_stateless = parts.auxiliary, stateless
        self._passed = self._count_passed()
        self._is_known = not (self._auxiliary.has_landed and self._auxiliary.turns == "unknown")

    def basis(self) -> TurnData:
        """Return what the data of the turns until now came from, as a boundary records it. Call it once a turn."""
        if self._is_stateless:
            return "stateless"
        passed = self._count_passed()
        if passed <= self._passed:  # a turn without a batch of a tracked loader: its data came from somewhere else
            self._is_known = False
        self._passed = passed
        return "tracked" if self._is_known else "unknown"

    def _count_passed(self) -> int:
        return sum(position.passed for position in self._auxiliary.loaders.values())
