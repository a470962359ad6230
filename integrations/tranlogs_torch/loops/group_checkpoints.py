"""The boundaries at which the ranks ask each other whether a checkpoint is due, and notes of those that they have."""

from __future__ import annotations

from contextlib import suppress

from tranlogs.training import CheckpointPolicy, EverySteps, Journal

from ..distributed.group_messages import NoteBoard

_ASK_STEPS = 10  # how often ranks ask each other whether a checkpoint is due, and whether they are still equal

_NAME = "checkpoint"


class GroupCheckpoints:
    """The schedule of one rank. All ranks ask at the same steps, since the schedule depends only on what all of them know.

    Attributes:
        every: number of steps between two checkpoints; None if the policy is of another kind.
    """

    def __init__(self, policy: CheckpointPolicy) -> None:
        self.every = policy.steps if isinstance(policy, EverySteps) else None
        self._asked_at = self._taken_at = 0  # steps
        self._companions_at = 0  # companion steps when the last checkpoint was taken
        self._is_wanted = self._is_hurried = self._was_suspended = False

    def demand(self) -> None:
        """Ask at the next boundary, and take a checkpoint there."""
        self._is_wanted = self._is_hurried = True

    def note_boundary(self, journal: Journal, *, wanted: bool) -> None:
        """Note whether this rank wants a checkpoint, and whether it logs."""
        self._is_wanted |= wanted
        self._was_suspended |= journal.is_suspended

    def is_time(self, journal: Journal) -> bool:
        """Return True if all ranks ask each other at this step."""
        companions = journal.checkpoints.schedule.companion_steps - self._companions_at
        is_over = self.every is not None and journal.step - self._taken_at - companions >= self.every
        is_time = journal.step // _ASK_STEPS > self._asked_at // _ASK_STEPS or is_over
        return is_time or self._is_hurried

    def begin_asking(self, journal: Journal) -> bool:
        """Return True if this rank needs a checkpoint now."""
        self._asked_at, self._is_hurried = journal.step, False
        has_gap = self._was_suspended and not journal.is_suspended  # what others hold of these steps is of no use without it
        return self._is_wanted or has_gap or journal.is_checkpoint_due()

    def note_taken(self, journal: Journal) -> None:
        """Note that all ranks take a checkpoint at this step."""
        self._taken_at, self._is_wanted, self._was_suspended = journal.step, False, journal.is_suspended
        self._companions_at = journal.checkpoints.schedule.companion_steps

    def restart(self, step: int, checkpoint_step: int) -> None:
        """Go on from a recovery: at `step`, with the newest checkpoint that all ranks have."""
        self._asked_at, self._taken_at = step, checkpoint_step


class CheckpointNotes:
    """Exchanges the steps of the ranks' newest checkpoints, and holds what recovery from the oldest one needs.

    A rank may be many steps ahead of another one that dies. All go back to a step that each of them can reach.

    Args:
        board: where the ranks leave notes for each other.
        world: number of ranks.
    """

    def __init__(self, board: NoteBoard, world: int) -> None:
        self._board, self._world = board, world
        self._written_step = -1

    def exchange(self, journal: Journal) -> None:
        """Write and read notes at a boundary, if this rank has a newer checkpoint than at its last note."""
        newest = journal.checkpoints.newest_step
        if newest == self._written_step or not self._board.is_there:
            return
        self._written_step = newest
        with suppress(RuntimeError):  # the process that holds the notes is gone; what is held stays so
            self._board.write(_NAME, str(newest))
            steps = [int(text) for text in self._board.read(_NAME).values()]
            # Nothing is pruned until all ranks have left a note: others may still be at the start.
            journal.holds.set_common_step(min(steps) if len(steps) == self._world else 0, self._world)
