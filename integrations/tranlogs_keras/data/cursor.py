"""The loop over batches that `model.fit` runs, with a boundary wherever it asks for more, and a way in at any of them.

Keras's epoch iterator numbers the steps of an epoch in `_enumerate_iterator`. The cursor stands in its place and does the
same: one pass over the data an epoch, or, with `steps_per_epoch`, passes that go on from one epoch to the next.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..keras_internals import EpochIterator
from .source import Source


@dataclass(slots=True)
class Position:
    """Position of a fit.

    Attributes:
        fit: number of the `model.fit` call of this run, from 0.
        epoch: in it, from 0.
        batch: batches of the epoch that are done (Keras counts in steps of `steps_per_execution`).
        passes: passes over the data that were begun before the present one.
        seen: batches taken of the present pass; 0 if none is open.
        num_batches: batches of a pass, where Keras has found that out.
        total: batches over the whole run.
        is_finished: whether the fit has come to its end.
    """

    fit: int = 0
    epoch: int = 0
    batch: int = 0
    passes: int = 0
    seen: int = 0
    num_batches: int | None = None
    total: int = 0
    is_finished: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class Cursor:
    """Position of `model.fit` in its data. It stands in the place of the numbered iterator of Keras's epoch iterator.

    Args:
        epoch_iterator: Keras's.
        source: of the batches.
        position: where to begin.
        on_enter: called as the loop over an epoch's batches begins, before anything is opened; returns True if the run
            continues at this place.
        on_opened: called when the pass in which the run goes on is open.
        on_empty: called if that pass may hold no more batches; returns True if a step must be simulated.
        on_passed: called after it.
        on_boundary: called whenever the loop asks for its next batch.

    Attributes:
        position: where the fit stands.
        is_amid: whether a batch has been handed out and not yet been done with.
    """

    def __init__(
        self,
        epoch_iterator: EpochIterator,
        source: Source,
        position: Position,
        *,
        on_enter: Callable[[], bool],
        on_opened: Callable[[], None],
        on_empty: Callable[[], bool],
        on_passed: Callable[[], None],
        on_boundary: Callable[[], None],
    ) -> None:
        self._iterator, self.source, self.position = epoch_iterator, source, position
        self._on_enter, self._on_opened, self._on_boundary = on_enter, on_opened, on_boundary
        self._on_empty, self._on_passed = on_empty, on_passed
        self._batches: Any = None  # the open pass
        self.is_amid = self._is_handed_out = False
        if position.num_batches is not None:
            epoch_iterator._num_batches = position.num_batches
        epoch_iterator._enumerate_iterator = types.MethodType(lambda _: self._epoch(), epoch_iterator)

    @property
    def place(self) -> str:
        """The position of the fit, in words."""
        position = self.position
        count = self._iterator.steps_per_epoch or position.num_batches
        where = f"batch {position.batch + 1}" if not count or position.batch < count else "its end"
        return f"epoch {position.epoch + 1}, {where}"

    def release(self) -> None:
        """Restore the method of Keras's epoch iterator."""
        vars(self._iterator).pop("_enumerate_iterator", None)

    def start_epoch(self, epoch: int) -> None:
        """Note that Keras begins an epoch."""
        position, keras = self.position, self._iterator
        position.num_batches = keras._num_batches
        if epoch == position.epoch:
            return
        position.epoch, position.batch = epoch, 0
        if position.seen and (keras.steps_per_epoch is None or keras._current_iterator is None):
            self._close()  # Keras opens another one

    def _epoch(self) -> Iterator[tuple[int, int, Any]]:
        keras, position = self._iterator, self.position
        is_resumed = self._on_enter()
        opens = self._batches is None or keras.steps_per_epoch is None
        if opens:
            self.source.prepare(position.passes, self._taken(), is_amid=position.batch > 0)
        keras.data_adapter.on_epoch_begin()
        self.source.entered(is_amid=position.batch > 0)
        steps = keras.steps_per_epoch or keras._num_batches or -1
        if opens:
            self._batches = keras._current_iterator = self.source.open(position.passes, self._taken())
        if is_resumed:
            self._on_opened()
            if self.may_be_over and self._on_empty():
                self._is_handed_out = True
                yield position.batch - keras.steps_per_execution, position.batch - 1, self._batches
                self._on_passed()
        if steps > 0:
            yield from self._counted(steps)
        else:
            yield from self._until_exhausted()
        keras.data_adapter.on_epoch_end()

    @property
    def may_be_over(self) -> bool:
        """True if the epoch may hold no more batches."""
        position, count = self.position, self._iterator._num_batches
        steps = self._iterator.steps_per_epoch or count or -1
        return position.batch > 0 and (steps < 0 or position.batch >= steps or bool(count and position.seen >= count))

    def _counted(self, steps: int) -> Iterator[tuple[int, int, Any]]:
        keras, position = self._iterator, self.position
        for step in range(position.batch, steps, keras.steps_per_execution):
            if keras._num_batches and position.seen >= keras._num_batches:
                if keras.steps_per_epoch:
                    keras._interrupted_warning()
                break
            keras._steps_seen = position.seen + keras.steps_per_execution
            yield from self._handed_out(step)
        if keras._num_batches and position.seen >= keras._num_batches:
            self._close()
            self.source.open_spare()

    def _until_exhausted(self) -> Iterator[tuple[int, int, Any]]:
        while True:
            step = self.position.batch
            self._iterator._steps_seen = step + self._iterator.steps_per_execution
            yield from self._handed_out(step)

    def _handed_out(self, step: int) -> Iterator[tuple[int, int, Any]]:
        executions = self._iterator.steps_per_execution
        self.is_amid = self._is_handed_out = True
        try:
            yield step, step + executions - 1, self._batches
        finally:
            self._is_handed_out = False
        self.is_amid = False
        self.advance(executions)
        self._on_boundary()

    def take(self) -> bool:
        """Note that a step takes the batch that was handed out; return False if there is none."""
        taken, self._is_handed_out = self._is_handed_out, False
        return taken

    def advance(self, batches: int) -> None:
        """Count batches that are done."""
        position = self.position
        position.batch += batches
        position.seen += batches
        position.total += batches
        position.num_batches = self._iterator._num_batches

    def _taken(self) -> int:
        """Return the number of consumed batches of the pass. The last execution of several steps may have found fewer."""
        return min(self.position.seen, self._iterator.data_adapter.num_batches or self.position.seen)

    def _close(self) -> None:
        """Close the pass, which is at its end."""
        self.position.passes += 1
        self.position.seen = 0
        self._batches = None
        self.source.close()
