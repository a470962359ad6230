"""Boundaries: where the units of a run are committed.

A boundary is the moment when the loop asks for its next batch. Everything since the last boundary (no, one or many steps, of
one or several optimizers) commits as one unit, with the auxiliary state that is read at the boundary. A batch after which
gradients are still being accumulated commits nothing: a loop cannot be entered again there, so recovery goes back to the
boundary before.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import torch

from tranlogs.base.config import OUTSIDE_UNITS_MAX
from tranlogs.records import Snapshot
from tranlogs.training import UNKNOWN_DATA, BoundaryLog, GroupDecision, TurnData

from ..capture.forward_hook import ForwardHook
from ..state import naming
from ..state.caveats import IMPLICIT, LONG_UNIT
from ..state.state import digest_state
from ..tensors.arrays import local
from .recovery import Recovery
from .run_parts import RunParts

_log = logging.getLogger("tranlogs")

_LONG_UNIT = 1000  # steps; reinforcement learning takes some hundreds with one batch


class Boundaries:
    """Counts the steps of the running unit, and commits it at the boundary.

    It has more attributes than most classes: whatever a boundary stores is asked for here, at the same moment.

    Args:
        parts: parts of the run.
        recovery: compares what is computed again.

    Attributes:
        running: loops of `LoggedOptimizer` that are running, the outermost first.
        outside: how the script stands outside of these loops; None in one of them.
        steps_since_boundary: number of steps and after-images of the running unit.
        log: records boundaries.
        errors_at_step: ids of the exceptions that were being handled, and that the interpreter had last reported, when the
            newest step was taken. They have not ended the training.
        forward_hooks: those on the modules of the run.
        is_forward_seen: False once a step has shown that no hook sees the forward pass.
    """

    def __init__(self, parts: RunParts, recovery: Recovery) -> None:
        self._parts, self._recovery, self._writes = parts, recovery, parts.writes
        self._logged = parts.logged
        self._journal, self._state, self._auxiliary = parts.journal, parts.state, parts.auxiliary
        self.running: list[object] = []
        self.forward_hooks: list[ForwardHook] = []
        self.outside: BehindLoop | None = BehindLoop(self, parts)
        self.steps_since_boundary = 0
        self._steps_by_optimizer: dict[str, int] = {}  # of the running unit
        self.log = BoundaryLog(
            parts.settings.run,
            parts.journal,
            parts.rung,
            recovery.recheck,
            lambda: digest_state(parts.state),
            self._remember,
            lambda body: parts.coordinator.prepare_checkpoint(parts.journal, self._read_whole(body)),
            speaks=parts.coordinator.rank == 0,
        )
        self._is_end = False  # a loop ends with the boundary that comes
        self._taken_at_boundary: dict[str, int] = {}
        self._has_reserved = self._has_said_nested = False
        self.is_forward_seen = True
        self._outside_units = 0  # in a row
        self._boundary_at = time.perf_counter()
        self.errors_at_step: tuple[int, int] = (0, 0)

    def landed(self) -> None:
        """Take the data position at which recovery ended as that of the last boundary."""
        self._taken_at_boundary = self._auxiliary.taken()

    def enter(self, loop: object) -> None:
        """Note that a loop of `LoggedOptimizer` runs."""
        self.running.append(loop)
        self._is_end = False  # of a loop before, which ended amid a unit
        self._stand(None)

    def leave(self, loop: object) -> None:
        """Note that a loop has ended, or was left."""
        self.running.remove(loop)
        if not self.running:
            self._stand(BehindLoop(self, self._parts))

    def _stand(self, outside: BehindLoop | None) -> None:
        self.outside = outside
        for hook in self.forward_hooks:
            if self.running:
                hook.remove()  # a loop tells where its units end
            else:
                hook.install()
        self.capture_next_steps()

    def capture_next_steps(self) -> None:
        """Let each optimizer look at its next step, also where steps are only counted."""
        for hooks in self._parts.hooks.values():
            hooks.is_counted = False

    def after_step(self, optimizer: str) -> None:
        """Count a step of an optimizer that was logged."""
        self.steps_since_boundary += 1
        self.errors_at_step = id(sys.exc_info()[1]), id(getattr(sys, "last_value", None))
        self._steps_by_optimizer[optimizer] = self._steps_by_optimizer.get(optimizer, 0) + 1
        if not self._has_reserved:  # optimizer state is there from the first step on
            self._has_reserved = True
            self._journal.checkpoints.expect_snapshot(self._state.nbytes())
        if self.outside is not None:
            self.outside.after_step()
        elif self.steps_since_boundary == _LONG_UNIT:
            self._parts.report.warn_of_script(LONG_UNIT)

    def boundary(self, asking: object = None) -> None:
        """Commit the unit, because the loop `asking` (None: whichever runs) wants its next batch.

        Only requests of the outermost loop are boundaries: an inner loop runs in the middle of the outer loop's body.
        """
        outermost = self.running[0] if self.running else asking
        if asking is not None and outermost is not asking:
            self._say_nested()
            return
        if self.outside is not None:
            self.outside.forget()
        self._outside_units = 0
        if self._parts.rung.logs_tensors:
            self._logged.phase.note_writes("at a boundary")
        taken = self._auxiliary.taken()
        if not self.steps_since_boundary and taken != self._taken_at_boundary and self._is_amid(taken, asking):
            return
        self._taken_at_boundary = taken
        self.log.begin(has_steps=self.steps_since_boundary > 0)
        self._parts.restarts.look()
        decision = self._decide()
        if self.log.is_passed_over(is_needed=self._writes.wants_checkpoint, decision=decision):
            self._count_unit()
        else:
            outer = self.running[0] if self.running else None
            if isinstance(outer, Turns):
                self._note_turns(outer)
            else:
                self._auxiliary.turns = None
            self._commit(self._read(), decision)
        self.log.end_unit(decision)

    def _decide(self) -> GroupDecision | None:
        """Return what the processes that train together have decided on this boundary; None if there are none."""
        parts, is_end, self._is_end = self._parts, self._is_end, False
        if parts.coordinator.is_single:
            return None
        return parts.coordinator.decide(
            parts.journal,
            parts.rung,
            is_wanted=self._writes.wants_checkpoint or (not parts.rung.logs_tensors and self._auxiliary.has_script_changes),
            is_due=self.log.is_due,
            is_end=is_end,
            read_digests=lambda: self._writes.known,
        )

    def leave_loop(self) -> None:
        """Note that a loop was left: a step outside of it would have to be logged from here on.

        Of several processes one may go on alone here. They log tensors again from the checkpoint on that they take together
        behind such a step.
        """
        if self._parts.coordinator.is_single:
            self.log.leave_loop(self._read, has_steps=self.steps_since_boundary > 0)

    def log_tensors(self) -> None:
        """Log tensors from the step on that comes now, which lies outside of all loops; see `BoundaryLog.log_tensors`."""
        if not self._parts.coordinator.is_single:
            self.log.settle()
            self._parts.coordinator.demand_question()
            return

        def commit(behind: dict[str, Any] | None) -> None:
            self._commit((behind or self._read()) | {"is_implicit": True, "turns": None})

        self.log.log_tensors(commit, has_steps=self.steps_since_boundary > 0)

    def expect_end(self) -> None:
        """Note that a loop ends with the next boundary: where no tensors are logged, only a checkpoint leads there."""
        self._is_end = True
        if self.log.expect_end():
            self._writes.wants_checkpoint = True

    def _read(self) -> dict[str, Any]:
        recorded = self._parts.restarts.recorded
        return {**self._auxiliary.read(), **({"restarts": recorded} if recorded is not None else {}), **self.log.read()}

    def _note_turns(self, turns: Turns) -> None:
        """Note what the data of the running loop over `steps()` come from."""
        self._auxiliary.turns = turns.basis()
        if self._auxiliary.turns == "unknown":
            self._parts.report.warn_of_script(UNKNOWN_DATA)

    def _say_nested(self) -> None:
        if self.steps_since_boundary and not self._has_said_nested:
            self._has_said_nested = True
            _log.warning(
                "%s: one of these loops runs inside another; only the outer loop's batches are points that a resume can "
                "return to",
                self._parts.settings.run,
            )

    def _is_amid(self, taken: dict[str, int], asking: object) -> bool:
        """Return True if the loop is in the middle of a unit.

        Either another loader has yet to give its batch of the same turn (`zip`), or gradients wait for a step. If a tracked
        GradScaler has changed, it has skipped the step, and nothing waits.
        """
        for name, position in self._auxiliary.loaders.items():
            if position is asking and taken[name] == self._taken_at_boundary.get(name):
                return True
        return self._auxiliary.gradients.are_waiting() and not self._auxiliary.has_skipped_step()

    def _read_whole(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return what a checkpoint holds of a boundary."""
        return {**body, "scalars": self._parts.scalars.pack()}

    def _commit(self, body: dict[str, Any], decision: GroupDecision | None = None) -> None:
        if not self._parts.rung.logs_tensors:
            self.capture_next_steps()
        now = time.perf_counter()
        if self.steps_since_boundary and self._parts.rung.logs_tensors:
            fingerprint = self._state.named.fingerprint
            fingerprint.fit_budget((now - self._boundary_at) / self.steps_since_boundary)
            if fingerprint.kind == "sample":
                self._writes.remember(self._journal.step)
        self._boundary_at = now
        noted = self._count_unit()
        wanted: bool | None = self._writes.wants_checkpoint or None

        def whole() -> dict[str, Any]:
            return self._read_whole(body)

        def snapshot() -> Snapshot:
            return self._state.snapshot(whole())

        if not self._parts.coordinator.is_single:
            self._parts.coordinator.at_boundary(self._journal, body, whole, decision, lambda: self._writes.known)
        is_logged, has_changes = not self._journal.is_rechecking, self._auxiliary.has_script_changes

        def settle() -> bool:
            is_over = self._recovery.settle_recheck()
            if self._auxiliary.deviation is not None:  # of this unit: the boundary may be recorded once more
                body["deviation"] = self._auxiliary.deviation
            return is_over

        is_late = self.log.commit(
            body,
            snapshot,
            settle,
            wants_checkpoint=wanted,
            scalars=noted,
            has_script_changes=has_changes,
            decision=decision,
        )
        self._writes.wants_checkpoint = is_late
        if is_logged:
            self._auxiliary.has_script_changes = False
        self._logged.phase.note_commit()

    def _remember(self) -> None:
        self._state.named.refresh()
        self._parts.writes.remember(self._journal.step)

    def _count_unit(self) -> dict[str, float]:
        """Count the unit that ends, and return its scalars."""
        self.steps_since_boundary = 0
        if len(self._steps_by_optimizer) > 1:
            self._note_companion_steps()
        else:
            self._steps_by_optimizer.clear()
        if self._parts.rung.logs_tensors:
            self._writes.looks.count_unit()
        return self._parts.scalars.commit(self._journal.step)

    def _note_companion_steps(self) -> None:
        """Let the steps of several optimizers in one unit count as those of the one that took the fewest."""
        steps, self._steps_by_optimizer = self._steps_by_optimizer, {}
        self._journal.checkpoints.schedule.companion_steps += sum(steps.values()) - min(steps.values())

    def commit_outside(self, rng: Any, buffers: dict[str, torch.Tensor] | None) -> None:
        """Commit the unit of the last step in a loop of the user's own.

        Args:
            rng: the random states after the step.
            buffers: the buffers after the step; None if they are what they were then.
        """
        self._outside_units += 1
        if self._outside_units == OUTSIDE_UNITS_MAX and not self._auxiliary.is_loop_remembered:
            self._parts.report.warn_of_script(IMPLICIT)
        self._parts.logged.phase.note_writes("at a boundary")
        self.log.begin(has_steps=self.steps_since_boundary > 0)
        self._parts.restarts.look()
        decision = self._decide()
        body = self._read() | {"rng": rng, "is_implicit": True, "turns": None}
        self._commit(body if buffers is None else body | {"buffers": buffers}, decision)
        if decision is not None:
            self.log.end_unit(decision)

    def is_as_recovered(self) -> bool:
        """Return True if the run was recovered, and nothing was logged since."""
        report = self._parts.report.current
        if report is None or report.checkpoint_step is None:
            return False
        return not self.steps_since_boundary and self._journal.step == report.step


class BehindLoop:
    """The script is in no loop of `LoggedOptimizer`, and has taken no step since it was."""

    def __init__(self, unit: Boundaries, parts: RunParts) -> None:
        self._unit, self._parts = unit, parts

    def before_step(self) -> None:
        """Note that a step outside of all loops comes, whose forward pass no hook may have seen."""
        if not self._parts.rung.logs_tensors and self._parts.report.face == "script":
            self._unit.log_tensors()
        self._open()
        self._unit.outside = OutsideLoops(self._unit, self._parts)

    def after_step(self) -> None:
        """Note that a step was taken."""

    def before_forward(self) -> None:
        """Note that a forward pass begins, after which a step outside of all loops may follow."""
        if self._unit.log.is_behind_loop:
            self._unit.log_tensors()
        self._open()

    def _open(self) -> None:
        if not self._parts.restarts.is_open:
            self._parts.restarts.open()

    def commit(self) -> None:
        """Commit the last step outside of all loops, which takes no part in a unit of a loop."""

    def forget(self) -> None:
        """Note that a boundary comes, which ends the unit."""


class OutsideLoops(BehindLoop):
    """The script takes steps outside of all loops. The unit of such a step ends at the next training forward pass.

    If no hook sees the forward pass (a compiled model), the unit ends at the next step, with the buffers as they were after
    the last step.
    """

    def __init__(self, unit: Boundaries, parts: RunParts) -> None:
        super().__init__(unit, parts)
        self._has_stepped = False
        self._rng: Any = None  # after the newest step
        self._buffers: dict[str, torch.Tensor] = {}

    def before_step(self) -> None:
        if not self._has_stepped:
            return
        self._has_stepped = False
        if not self._buffers and naming.named_buffers(self._parts.modules):
            self._unit.is_forward_seen = False  # this unit merges with the next, of which the buffers will be kept
            return
        self._unit.commit_outside(self._rng, self._buffers)

    def after_step(self) -> None:
        buffers = {} if self._unit.is_forward_seen else naming.named_buffers(self._parts.modules)
        self._buffers = {name: local(b).detach().clone() for name, b in buffers.items()}
        self._rng, self._has_stepped = self._parts.auxiliary.rng_now(), True
        self._unit.capture_next_steps()

    def before_forward(self) -> None:
        self.commit()

    def commit(self) -> None:
        if self._has_stepped:
            self._has_stepped = False
            self._unit.commit_outside(self._rng, None)

    def forget(self) -> None:
        self._has_stepped = False


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
