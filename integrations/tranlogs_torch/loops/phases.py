"""The phases of a run: one object at a time, which is replaced by the next.

Fresh      the script has built its state; nothing is logged
Landed     the state is that of a boundary, or of a start, and no step was taken since
Proving    the loop computes the newest unit before the crash again; its records are compared, and not logged
Live       steps and boundaries are logged
Suspended  the log cannot be written: steps are counted, and each boundary tries to go on from a checkpoint
Closed     nothing is logged any more; Forked in a child of the process that logs

    Fresh -> Landed -> Proving -> Live <-> Suspended -> Closed
"""

from __future__ import annotations

from tranlogs.base.errors import UsageError
from tranlogs.training import Place, describe_script_change

from ..capture.logged_run import Phase
from .boundaries import Boundaries
from .loops import Loops
from .recovery import Recovery
from .run_parts import RunParts


class Live(Phase):
    """Steps and boundaries are logged.

    Args:
        parts: of the run.
        unit: that is running.
        recovery: whose report is updated.
    """

    is_logging = True

    def __init__(self, parts: RunParts, unit: Boundaries, recovery: Recovery) -> None:
        self._parts, self._unit, self._recovery = parts, unit, recovery
        self._journal, self._rung, self._writes = parts.journal, parts.rung, parts.writes

    def before_step(self) -> None:
        if self._unit.outside is not None:
            self._unit.outside.before_step()
        if self._rung.logs_tensors:
            self.note_writes("before a step")

    def after_step(self, optimizer: str) -> None:
        self._unit.after_step(optimizer)

    def before_forward(self) -> None:
        if self._unit.outside is not None:
            self._unit.outside.before_forward()

    def note_writes(self, place: Place | None = None) -> None:
        if self._writes.note(place):
            self._unit.steps_since_boundary += 1

    def open_loop(self) -> None:
        self._recovery.report.note_own_loop()
        if self._unit.outside is not None:
            self._unit.outside.commit()

    def boundary(self, asking: object = None) -> None:
        self._unit.boundary(asking)

    def note_commit(self) -> None:
        if self._journal.log.suspension is not None:
            self._follow(Suspended)
            self._parts.auxiliary.drop_unstorable()

    def _follow(self, kind: type[Live]) -> None:
        self._parts.logged.phase = kind(self._parts, self._unit, self._recovery)


class Proving(Live):
    """The loop computes the newest unit again. At each boundary the conclusion is drawn, as soon as that can be."""

    def note_commit(self) -> None:
        if not self._recovery.recheck.is_pending:
            self._follow(Live)
            self._parts.logged.phase.note_commit()


class Suspended(Live):
    """The log cannot be written. What something writes to the state is in the checkpoint from which logging goes on."""

    def note_writes(self, place: Place | None = None) -> None:
        self._parts.state.named.refresh()
        self._parts.writes.remember(self._journal.step)

    def note_commit(self) -> None:
        if self._journal.log.suspension is not None:
            self._parts.auxiliary.drop_unstorable()
        else:
            self._follow(Live)


class Landed(Live):
    """The state is that of a boundary, or of a start, and no step was taken since.

    Args:
        loops: of the run.
    """

    def __init__(self, parts: RunParts, unit: Boundaries, recovery: Recovery, loops: Loops) -> None:
        super().__init__(parts, unit, recovery)
        self._loops = loops

    def before_step(self) -> None:
        auxiliary, outside = self._parts.auxiliary, self._unit.outside
        if outside is not None:
            outside.before_step()
            auxiliary.sequence.demand_no_step_between()
            self._loops.unwatch_reads()
            if auxiliary.is_waiting:  # no loop was opened, which would have compared them
                self.note_early_writes(opens_loop=False)
        self._recovery.recheck.name_strangers()
        self._follow(Proving if self._recovery.recheck.is_pending else Live)
        if self._rung.logs_tensors:
            self.note_writes("before a step")

    def open_loop(self) -> None:
        super().open_loop()
        sequence = self._parts.auxiliary.sequence
        if not sequence.entered and not self._loops.has_backup:  # what code around finished loops has changed is undone
            self.note_early_writes(opens_loop=True)
        newest = self._recovery.read_newest_loop()
        if 0 < newest.count <= sequence.entered and self._unit.is_as_recovered():  # that loop was left before its unit
            self._recovery.settle_script_changes("next")

    def note_commit(self) -> None:
        """Stay in the phase: the boundary of a unit without steps."""

    def note_early_writes(self, *, opens_loop: bool) -> None:
        """Report what was written between the recovery and the first batch: the uninterrupted run wrote nothing there.

        Args:
            opens_loop: True if a loop begins, so that what was written is a change by the user. A step outside of all loops may
                follow what the loop itself writes in each turn.
        """
        parts = self._parts
        if not self._unit.is_as_recovered() or self._unit.running or parts.journal.is_suspended:
            return
        for what in parts.auxiliary.find_overruled_rates():
            raise UsageError(f"{parts.settings.run}: {what}")
        if not self._recovery.settle_script_changes("own" if opens_loop else ""):
            texts = self._find_early_writes()
            for text in texts:
                parts.report.warn(describe_script_change(text), False)
            parts.auxiliary.has_script_changes |= bool(texts)

    def _find_early_writes(self) -> list[str]:
        """Return what was written since a recovery after which no unit is computed again, in words."""
        parts, report = self._parts, self._parts.report.current
        changed = [
            f"{key} of parameter group {i} of optimizer {which!r}" for which, i, key, _ in parts.auxiliary.changed_hyper()
        ]
        if report is None or not report.step:
            return changed
        written = [f"weight {name}" for name in parts.writes.parameters(parts.journal.step)]
        return written[:1] + [f"the state of optimizer {which!r}" for which in parts.writes.optimizers()] + changed


class Fresh(Landed):
    """The script has built its state. Its first step or loop begins the run, unless that holds something to be recovered."""

    has_begun = is_logging = False

    def _begin(self) -> Phase:
        self._recovery.begin()
        return self._parts.logged.phase

    def before_step(self) -> None:
        self._begin().before_step()

    def before_forward(self) -> None:
        """Do nothing."""

    def note_writes(self, place: Place | None = None) -> None:
        """Do nothing: the first checkpoint has all."""

    def open_loop(self) -> None:
        self._begin().open_loop()

    def boundary(self, asking: object = None) -> None:
        """Do nothing."""


class Closed(Phase):
    """Nothing is logged any more.

    Args:
        parts: of the run.
    """

    def __init__(self, parts: RunParts) -> None:
        self._run = parts.settings.run

    def open_loop(self) -> None:
        raise UsageError(f"{self._run}: the run is closed and logs nothing more. Create a new LoggedOptimizer to continue it")


class Forked(Phase):
    """A child of the process that logs, in which the script may train on without a log."""
