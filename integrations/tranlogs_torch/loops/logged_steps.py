"""The run as the hooks of optimizers and of modules use it, before, in and after each step."""

from __future__ import annotations

import logging

from tranlogs.records import Payload, Tensor

from ..capture.staging import Staging
from ..state.advice import advise
from ..state.fingerprint import Digests
from .after_images import WriteLog
from .boundaries import Boundaries
from .loops import Loops
from .recovery.recovery import Recovery
from .run_parts import RunParts

_log = logging.getLogger("tranlogs")


class LoggedSteps:
    """Receives the steps of the run's optimizers (`capture.logged_run.LoggedRun`).

    Args:
        parts: of the run.
        staging: brings gradients of a GPU to the host; None where all tensors are on the CPU.
        recovery: is asked whether training has begun.
        loops: the loops of `LoggedOptimizer`.
        boundaries: commits units.
        write_log: logs writes that no step made.
    """

    def __init__(
        self,
        parts: RunParts,
        staging: Staging | None,
        recovery: Recovery,
        loops: Loops,
        boundaries: Boundaries,
        write_log: WriteLog,
    ) -> None:
        self._parts, self.staging = parts, staging
        self.run, self.journal, self.auxiliary = parts.settings.run, parts.journal, parts.auxiliary
        self.modules, self.state, self.coordinator = parts.modules, parts.state, parts.coordinator
        self.rung, self.running, self.counting = parts.rung, loops.running, boundaries.counting
        self._recovery, self._loops, self._boundaries, self._write_log = recovery, loops, boundaries, write_log
        self.after_step = boundaries.after_step  # not a method: optimizers call it after each step
        self._has_reported_unlogged = False

    @property
    def is_active(self) -> bool:
        """True if steps of this process are logged."""
        return self.journal.is_writer

    def before_step(self) -> None:
        """Log what something wrote to the state since the last look, before the step builds on it."""
        if not self._recovery.has_begun:
            self._recovery.begin()
        if not self.running:
            if not self.rung.logs_tensors and self._parts.report.face == "script":
                self._boundaries.log_tensors()
            self.auxiliary.sequence.demand_no_step_between()
            self._loops.unwatch_reads()
            if self.auxiliary.is_waiting:  # no loop was opened, which would have compared them
                self._loops.note_early_writes()
        if not self._parts.restarts.is_open:  # nor was the model called, as a network of several parts is not
            self._parts.restarts.open()
        if self.auxiliary.has_landed:
            self._recovery.recheck.name_strangers()
        if self._boundaries.implicit is not None:
            self._boundaries.commit_implicit(is_before_forward=False)
        if self.rung.logs_tensors:
            self._boundaries.note_writes("before a step")

    def saw_scaler(self, scaler: object) -> None:
        """Warn if a GradScaler that calls a step is not tracked; its scale decides over the steps to come."""
        if not any(thing is scaler for thing in self.auxiliary.tracked.values()):
            self._parts.report.warn(
                f"a GradScaler that steps an optimizer is not tracked. {advise('scaler', self._parts.report.face)}",
                False,
            )

    def has_changed(self) -> bool:
        """Return True if something wrote to the state since the last look."""
        return self._write_log.has_changed()

    def after_image(self, tensors: list[Tensor], *, every_step: bool) -> Payload | None:
        """Return the payload of an after-image; None where it cannot be brought from a device: logging is suspended then."""
        return self._write_log.after_image(tensors, every_step=every_step)

    def digests(self) -> Digests:
        """Return the fingerprint of the parameters after the step that is being logged."""
        return self._parts.writes.digests(self.journal.step + 1)

    def report_unlogged(self) -> None:
        """Warn once that steps on a closed run are not logged."""
        if not self._has_reported_unlogged:
            self._has_reported_unlogged = True
            _log.warning("%s: the run is closed: this step and later steps are not logged", self.run)
