"""The newest checkpoints of ranks that do not wait for each other, told by notes: what the slowest goes back to is kept."""

from __future__ import annotations

from contextlib import suppress

from tranlogs.training import Journal

from ...distributed.group_messages import NoteBoard

_NAME = "checkpoint"


class CheckpointNotes:
    """Tells the other ranks which checkpoint this rank has, and holds what recovery from the oldest of theirs needs.

    A rank may be many steps ahead of another one that dies. All go back to a step that each of them can reach.

    Args:
        board: where the ranks leave notes for each other.
        world: number of ranks.
    """

    def __init__(self, board: NoteBoard, world: int) -> None:
        self._board, self._world = board, world
        self._told_step = -1

    def exchange(self, journal: Journal) -> None:
        """Tell and read at a boundary. Nothing is done while this rank's newest checkpoint is the one that it has told."""
        newest = journal.checkpoints.newest_step
        if newest == self._told_step or not self._board.is_there:
            return
        self._told_step = newest
        with suppress(RuntimeError):  # the process that holds the notes is gone; what is held stays so
            self._board.write(_NAME, str(newest))
            told = [int(text) for text in self._board.read(_NAME).values()]
            # Until all have told theirs, nothing is pruned: others may still be at the begin.
            journal.holds.set_common_step(min(told) if len(told) == self._world else 0, self._world)
