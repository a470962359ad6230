"""A loop over `steps()`: what its data depend on is known to the script alone, unless that is tracked, or declared."""

from __future__ import annotations

from tranlogs.training import TurnData

from ..data.loop_state import holds_loop_state
from ..state import naming
from .run_parts import RunParts


class Turns:
    """The turns of one loop over `steps()`.

    Args:
        parts: of the run.
        stateless: whether the script declares that a turn depends on nothing but what the run has.
    """

    def __init__(self, parts: RunParts, *, stateless: bool) -> None:
        self._parts, auxiliary = parts, parts.auxiliary
        goes_on = auxiliary.has_landed and auxiliary.turns == "tracked" and bool(auxiliary.loaders)
        self._basis: TurnData = "stateless" if stateless else "tracked" if goes_on else "unknown"
        self._taken = auxiliary.taken()
        self._seen: set[str] = set()  # names of tracked objects that were looked at

    def basis(self) -> TurnData:
        """Return what the data of the turns until now came from, as a boundary records it."""
        if self._basis == "unknown" and (self._has_taken_batches() or self._is_state_tracked()):
            self._basis = "tracked"
        return self._basis

    def _has_taken_batches(self) -> bool:
        """Return True if the loop has taken batches of a tracked loader."""
        return any(position.passed > self._taken.get(name, 0) for name, position in self._parts.auxiliary.loaders.items())

    def _is_state_tracked(self) -> bool:
        """Return True if an object is tracked that may hold the state of the script's loop."""
        parts, state = self._parts, self._parts.state
        new = [name for name in parts.auxiliary.tracked if name not in self._seen]
        self._seen.update(new)
        if not new:
            return False
        weights = [p for which in state.optimizers for group in state.outer(which).param_groups for p in group["params"]]
        others = [*naming.named_buffers(parts.modules).values(), *naming.named_parameters(parts.modules).values()]
        return any(holds_loop_state(parts.auxiliary.tracked[name], weights, others) for name in new)
