"""The state of the run that a training script has built."""

from __future__ import annotations

from tranlogs.records import Entry

from ..elastic.recoverable_state import RecoverableState
from ..tensors.arrays import make_array, make_extension
from .optimizer_classes import OptimizerClasses
from .recorded_state import RecordedState


class LiveState(RecoverableState):
    """The state of a run in the process that trains it."""

    def former_state(self) -> RecordedState:
        """Return a state for what another process recorded, with the optimizers' classes that the script uses."""
        return RecordedState(OptimizerClasses.of(self.optimizers.values()))

    @property
    def is_absorbing(self) -> bool:
        """True if the run has state of which each boundary holds what was added."""
        return bool(self.growth.members)

    def absorb(self, entry: Entry) -> None:
        """Add what a boundary holds."""
        self.growth.add(entry.part("added", make_array=make_array, make_extension=make_extension) or {})
