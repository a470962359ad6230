"""How a unit ends, whatever the framework: whether its boundary is recorded, and what follows from the record."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from ..base.errors import UsageError
from ..checkpoints import Snapshot
from ..journal.journal import Journal
from ..recovery.history import PASSES
from .cadence import Cadence
from .recomputed_unit import RecomputedUnit
from .rungs import FollowedRung, Rung

_LOOPS_WITH_CHECKPOINT = 4  # at whose ends one is taken in any case where no tensors are logged; later where it costs little
_OUTSIDE = (
    'log="inputs" logs no tensors, so a crash is made good by the script\'s loop alone, and this step was taken outside of '
    "batches(), epochs() and steps(), where nobody knows the loop's position. Write `for batch in "
    'optimizer.batches(loader, until=...)`, or log="gradients"'
)


@dataclass(frozen=True, slots=True)
class GroupDecision:
    """What processes that train together have decided on a boundary, the same on all of them.

    Attributes:
        is_recorded: True if it is recorded where no tensors are logged.
        takes_checkpoint: True if all of them take a checkpoint.
        proposal: what the leader proposes to log from here on; see `FollowedRung.propose`.
        is_alone: True if this process has decided it alone, and others may do something else.
    """

    is_recorded: bool = False
    takes_checkpoint: bool = False
    proposal: list[Any] = field(default_factory=list)
    is_alone: bool = False


class BoundaryLog:
    """Records boundaries in the journal, and takes the checkpoints that they need.

    Where steps are logged with their tensors, each boundary is recorded. Else one is recorded now and then, with a digest of
    the state: a recovery computes the steps before it again, and compares.

    Args:
        run: folder of the run.
        journal: of the run.
        rung: tells whether steps are logged with their tensors.
        recheck: compares what is computed again with its record.
        digest_state: returns a digest of weights and optimizer state.
        remember: notes that the log has the state as it is now: a checkpoint from which on tensors are logged.
        prepare: called, with the body of a boundary, before a checkpoint of what all processes have computed again.
        speaks: True if this process says what is logged.
    """

    def __init__(
        self,
        run: Path,
        journal: Journal,
        rung: Rung,
        recheck: RecomputedUnit,
        digest_state: Callable[[], bytes],
        remember: Callable[[], None],
        prepare: Callable[[dict[str, Any]], None] = lambda _: None,
        *,
        speaks: bool = True,
    ) -> None:
        self._run, self._journal, self._rung, self._recheck = run, journal, rung, recheck
        self._digest_state, self._remember = digest_state, remember
        self._prepare, self._speaks = prepare, speaks
        self._cadence = Cadence()
        self._passes = 0  # boundaries since the newest step
        self._loops_ended = 0
        self._behind_loop: dict[str, Any] | None = None  # what a boundary holds, as a loop without tensors was left
        self._began = 0.0
        self._noted: tuple[str, bool, bool] | None = None  # what is logged, as it was last noted for others to read

    def begin(self, *, has_steps: bool) -> None:
        """Note that a boundary comes, which ends a unit with or without steps."""
        self._began = perf_counter()
        self._passes = 0 if has_steps else self._passes + 1

    @property
    def is_due(self) -> bool:
        """True if enough time has passed since the newest recorded boundary."""
        return self._cadence.is_due(self._journal.uncovered)

    def is_passed_over(self, *, is_needed: bool, decision: GroupDecision | None = None) -> bool:
        """Return True if this boundary is not recorded, because no tensors are logged and another one was recorded just now.

        Args:
            is_needed: True if it has to be recorded all the same.
            decision: of processes that record the same boundaries; None in one that trains alone.
        """
        rung, journal = self._rung, self._journal
        if rung.logs_tensors or (decision is None and (rung.wants_checkpoint or is_needed)):
            return False
        if journal.is_rechecking:
            return not self._recheck.wants(journal.step, self._passes)
        if decision is not None:
            return not decision.is_recorded
        return journal.step < journal.checkpoints.schedule.due_step and not self.is_due

    def read(self) -> dict[str, Any]:
        """Return what a boundary holds besides the state: how many came before it since the newest step, where that counts."""
        if not self._passes or (self._rung.logs_tensors and not self._recheck.is_covered):
            return {}
        return {PASSES: self._passes}

    def commit(
        self,
        body: dict[str, Any],
        snapshot: Callable[[], Snapshot],
        settle: Callable[[], bool],
        *,
        wants_checkpoint: bool | None,
        scalars: dict[str, float] | None,
        has_script_changes: bool = False,
        decision: GroupDecision | None = None,
    ) -> bool:
        """Record a boundary; return True if a checkpoint that is wanted has to be taken at a later one.

        Args:
            body: of the boundary.
            snapshot: copies the state for a checkpoint.
            settle: draws the conclusion if all that is computed again was compared, and returns True then.
            wants_checkpoint: True to take a checkpoint, False to take none; None to leave that to the policy.
            scalars: for `tranlogs log`.
            has_script_changes: True if the script has changed something before its loop, on which the next start builds.
            decision: of processes that take checkpoints together, in place of `wants_checkpoint`.
        """
        journal, rung, recheck = self._journal, self._rung, self._recheck
        before, logs_tensors, is_logged = journal.checkpoints.taken, rung.logs_tensors, not journal.is_rechecking
        is_needed = has_script_changes and is_logged
        if decision is not None:
            wants_checkpoint = is_needed = decision.takes_checkpoint
        if is_needed and not logs_tensors:
            journal.wait_checkpoint()
            wants_checkpoint = True
        is_covered = not is_logged and recheck.is_covered
        digests = self._digest_state() if journal.uncovered or is_covered else b""
        commit = partial(journal.boundary, body, snapshot, scalars=scalars, digests=digests)
        commit(checkpoint=wants_checkpoint if decision is not None else rung.wants_checkpoint or wants_checkpoint)
        equal = recheck.find_equal(journal.step) if digests else None
        recheck.wants_checkpoint = equal is not None and journal.wants_recomputed_checkpoint
        is_late = False
        if not is_logged and settle():
            if journal.uncovered:  # training goes on from what the loop has computed
                rung.note_difference()
                journal.wait_checkpoint()
                self._prepare(body)
                commit(checkpoint=True)
            elif is_covered or (wants_checkpoint and not self.has_checkpoint()):
                # What was computed again shall not be once more; or the process before has died too early for this one.
                is_late = recheck.recovered is not None  # and the state is another one now
                if not is_late:
                    journal.wait_checkpoint()
                    self._prepare(body)
                    journal.checkpoint(snapshot())
        elif equal is not None and recheck.wants_checkpoint:
            self._prepare(body)
            journal.checkpoint_recomputed(equal, snapshot)
        elif wants_checkpoint and is_logged and not logs_tensors:  # perhaps another one was being written
            is_late = True
        is_taken = journal.checkpoints.taken > before
        if is_taken and not journal.is_rechecking and rung.note_checkpoint():
            self._remember()
        self._cadence.note(self._began)
        return is_late and not is_taken

    def end_unit(self, decision: GroupDecision | None = None) -> None:
        """Note that the unit is over. While units are computed again, the record decides what is shown to the log."""
        journal, rung = self._journal, self._rung
        is_decided = rung.is_timing and not journal.is_rechecking and rung.note_unit()
        if decision is not None and decision.proposal and isinstance(rung, FollowedRung):
            had_tensors = rung.logs_tensors
            is_decided = rung.follow(decision.proposal, is_checkpoint=decision.takes_checkpoint)
            if rung.logs_tensors and not had_tensors:
                self._remember()
        if (noted := (rung.phase, rung.is_settled, rung.is_repeatable)) != self._noted:
            self._noted = noted
            known: dict[str, Any] = {} if rung.cost is None else {"cost": rung.cost}  # else that of a former process holds
            known |= {"phase": rung.phase, "is_settled": rung.is_settled, "is_repeatable": rung.is_repeatable}
            journal.checkpoints.measurements.note(overhead=rung.overhead, **known)
        if is_decided and self._speaks and not journal.is_suspended:
            print(f"TranLogs: {self._run}: {journal.describe_recording()}", file=sys.stderr, flush=True)

    def expect_end(self) -> bool:
        """Note that a loop ends with the next boundary; return True if a checkpoint is to be taken there.

        Where no tensors are logged, only a checkpoint leads there without computing the loop again.
        """
        if self._rung.logs_tensors:
            return False
        self._cadence.demand()
        self._loops_ended += 1
        if self._loops_ended > _LOOPS_WITH_CHECKPOINT and not self._journal.checkpoints.schedule.is_affordable:
            return False
        self._journal.wait_checkpoint()
        return True

    @property
    def is_behind_loop(self) -> bool:
        """True if a loop without tensors was left, and no step was taken since."""
        return self._behind_loop is not None

    def leave_loop(self, read: Callable[[], dict[str, Any]], *, has_steps: bool) -> None:
        """Note that a loop was left: a step outside of it would have to be logged from here on.

        Args:
            read: returns what a boundary would hold now. It is kept.
            has_steps: True if the loop was left in the middle of a unit.
        """
        self._behind_loop = None
        if self._rung.is_measured and not self._rung.logs_tensors and self._journal.is_writer:
            self._behind_loop = read()
            if not has_steps and not self._journal.uncovered:
                self._remember()  # what is written from here on is not in the checkpoint at the end of the loop

    def settle(self) -> None:
        """Log tensors whatever they cost, because a step outside of the loops that the run knows comes.

        Raises:
            UsageError: the user wants no tensors in the log.
        """
        if not self._rung.is_measured:
            raise UsageError(f"{self._run}: {_OUTSIDE}")
        self._rung.settle()

    def log_tensors(self, commit: Callable[[dict[str, Any] | None], None], *, has_steps: bool) -> None:
        """Log tensors from the step on that comes now, whatever they cost: it lies outside of the loops that the run knows.

        No loop computes such a step again. So the log goes on from the checkpoint at the end of the loop before, or from one of
        now, with random states and all that the script keeps as they were when that loop was left.

        Args:
            commit: records a boundary, of what `leave_loop` has read; None if there was no loop.
            has_steps: True if the boundary ends a unit with steps.

        Raises:
            UsageError: the user wants no tensors in the log.
        """
        self.settle()
        behind, self._behind_loop = self._behind_loop, None
        self._journal.wait_checkpoint()
        if not has_steps and not self._journal.uncovered and self.has_checkpoint():
            self._rung.note_checkpoint()
            return
        self.begin(has_steps=has_steps)
        commit(behind)
        self._journal.wait_checkpoint()

    def has_checkpoint(self) -> bool:
        """Return True if there is a checkpoint at the end of the log."""
        journal = self._journal
        return any(row.sequence == journal.log.end.sequence for row in journal.catalog.checkpoints())
