"""One iteration over a tracked loader by a loop of the script."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Protocol

from ...data.position.iteration import END
from ...data.position.loader_position import LoaderPosition
from .finished_pass import COUNTS_BY_ITSELF, is_called_by_next


class PassOwner(Protocol):
    """The loops of a run, as a pass uses them."""

    def next_batch(self, p: LoaderPass) -> Any:
        """Return the next batch of a pass, or END."""
        ...

    def is_resumed(self, p: LoaderPass) -> bool:
        """Return True if the run stood in this pass, and its batches are boundaries."""
        ...

    def end(self, p: LoaderPass) -> None:
        """Note that a pass gave its last batch, or that no loop holds it any more."""
        ...


class LoaderPass:
    """One iteration over a tracked loader.

    Attributes:
        position: position in the loader.
        iteration: the iteration that the pass makes.
        number: number of the pass, among those over the loader.
        batches: number of batches handed out in this process.
        first_step: number of steps of the run when the first batch was handed out; None before.
        is_companion: True if the body of another loop asks for the batches.
        is_ended: True if the pass gave its last batch.
        is_uncounted: True for a plain iteration whose batches are not counted.
        is_unopened: True until the first batch is asked for, if the pass is opened only then.
        is_seen: True if a training forward pass ran since the pass began.
    """

    def __init__(self, loops: PassOwner, position: LoaderPosition) -> None:
        self._loops, self.position, self.iteration = loops, position, position.iteration
        self.number, self.batches = len(position.passes.finished), 0
        self.first_step: int | None = None
        self.is_companion = self.is_ended = self.is_uncounted = self.is_unopened = self.is_seen = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self.position.loader)

    def __next__(self) -> Any:
        if self.is_ended:
            raise StopIteration
        data = self._loops.next_batch(self)
        if data is END:
            if self._loops.is_resumed(self) and is_called_by_next(sys._getframe(1)):
                self.position.doubt(COUNTS_BY_ITSELF)
            self.is_ended = True
            self._loops.end(self)
            raise StopIteration
        return data

    def __del__(self) -> None:  # `break`, or an exception in the body
        if not self.is_ended:
            self.is_ended = True
            self._loops.end(self)
