"""The form in which steps are logged, and what the capture of steps finds out about it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from tranlogs.base.errors import UsageError
from tranlogs.training import Journal, LiveReport

from ..state.state import KerasState

_log = logging.getLogger("tranlogs")


class LogChoice:
    """Changes from gradients to weights where gradients are not enough, and asks for a checkpoint where the log is doubtful.

    Args:
        run: folder of the run.
        state: of the run.
        journal: of the run.
        report: receives warnings.
        can_change: whether weights may be logged from any step on; not if a train step of the user's own is split, since its
            update would then happen in another order.

    Attributes:
        wants_checkpoint: whether a checkpoint is taken at the next boundary.
    """

    def __init__(self, run: Path, state: KerasState, journal: Journal, report: LiveReport, *, can_change: bool) -> None:
        self._run, self._state, self._journal, self._report = run, state, journal, report
        self._can_change = can_change
        self.wants_checkpoint = False

    def give_up_gradients(self, why: str) -> None:
        """Log weights from the next step on.

        Raises:
            UsageError: that is not possible.
        """
        if not self._can_change:
            raise UsageError(
                f'{self._run}: log="gradients" cannot be right here: {why}, and that would happen in another order. '
                'Use log="weights" (or "auto"), in a new run folder'
            )
        _log.warning("%s: weights are logged from step %d on, not gradients: %s", self._run, self._journal.step + 1, why)
        self.log_weights()
        self.wants_checkpoint = True

    def log_weights(self) -> None:
        """Log the variables that each step has changed."""
        self._state.log = "weights"
        self._state.variables.is_whole = True
        self._state.variables.refresh()

    def note_late_write(self, name: str) -> None:
        """Report a write that may have been made some batches before it was found: the log has it, but not in its place."""
        _log.warning(
            "%s: %s was written between steps by something other than a callback of this fit, for the first time after many "
            "batches. A checkpoint is taken, and writes are looked for after each batch from here on",
            self._run,
            name,
        )
        self.wants_checkpoint = True

    def note_random_operations(self, names: Sequence[str]) -> None:
        """Report random numbers of the train step that a resume does not repeat."""
        text = (
            f"the train step draws random numbers by tf.random ({', '.join(names)}), whose state nobody can read: they are "
            "others after a resume. Draw them by keras.random with a keras.random.SeedGenerator"
        )
        if text not in self._report.texts:
            self._report.warn(text, False)
