"""The state of the run that a training script has built."""

from __future__ import annotations

from ..elastic.recoverable_state import RecoverableState
from .optimizer_classes import OptimizerClasses
from .recorded_state import RecordedState


class LiveState(RecoverableState):
    """The state of a run in the process that trains it."""

    def former_state(self) -> RecordedState:
        """Return a state for what another process recorded, with the optimizers' classes that the script uses."""
        return RecordedState(OptimizerClasses.of(self.optimizers.values()))
