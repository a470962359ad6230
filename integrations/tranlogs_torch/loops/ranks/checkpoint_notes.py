"""Notes on the newest checkpoints of ranks that do not wait for each other; the oldest of these checkpoints is kept."""

from __future__ import annotations

from contextlib import suppress

from tranlogs.training import Journal

from ...distributed.group_messages import NoteBoard

_NAME = "checkpoint"


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
