"""A check that processes which each log everything have the same parameters, because scripts may sum gradients by hand.

The processes need not step together, so none waits: each leaves a note of its parameters at every tenth step or so, and looks
for the notes of the others at its next boundaries. Each boundary records the step at which all parameters were last equal. If
a journal is lost then, another one can replace it.
"""

from __future__ import annotations

from contextlib import suppress

from ..distributed.group_messages import NoteBoard

_NOTE = "state"
_EVERY_STEPS = 10


class Likeness:
    """Notes of the parameters of each rank, and the step at which all of them were last equal.

    Attributes:
        step: at which all were last seen to be equal; -1 for never, or since they were seen to differ.
    """

    def __init__(self, board: NoteBoard) -> None:
        self._board = board
        self.step = -1
        self._noted_at = 0
        self._mine = ""  # the note to which others' are awaited
        self._differs = False

    def look(self, step: int, digest: str) -> int:
        """Leave a note at a boundary if it is time for one, and compare; return `step`."""
        with suppress(RuntimeError):  # the store is gone, and with it the group: the next step raises an error
            if self._mine and self._board.is_full(_NOTE):
                self._compare()
            if digest and not self._differs and step // _EVERY_STEPS > self._noted_at // _EVERY_STEPS:
                self._noted_at, self._mine = step, f"{step} {digest}"
                self._board.write(_NOTE, self._mine)
        return self.step

    def _compare(self) -> None:
        notes = self._board.read(_NOTE)
        steps = [int(note.split()[0]) for note in notes.values()]
        if max(steps) > self._noted_at:  # one rank is ahead, and its former note is gone
            self._mine = ""
        elif min(steps) == self._noted_at:
            self._differs = len(set(notes.values())) > 1
            self.step, self._mine = (-1 if self._differs else self._noted_at), ""
