"""The loops that `LoggedOptimizer` gives out: `epochs`, `batches` and `steps`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tranlogs.base.errors import UsageError
from tranlogs.training import name_loop

from ..data.source import Source
from .data_place import LoopData
from .loop_run import LoopRun


class Epoch(int):
    """The number of an epoch, to be iterated over for its batches: `for batch in epoch`.

    After a crash the loop may enter it in its middle: `epoch.enumerate()` has the true numbers of the batches. Copies and
    pickles of it are plain integers.
    """

    _loops: Loops

    @classmethod
    def of(cls, loops: Loops) -> Epoch:
        """Return the running epoch."""
        epoch = cls(loops.run.place.position.epoch)
        epoch._loops = loops
        return epoch

    @property
    def batch(self) -> int:
        """Batches of this epoch that are done."""
        return self._loops.run.place.position.batch

    def enumerate(self, start: int = 0) -> Iterator[tuple[int, Any]]:
        """Yield each batch with its number in the epoch, from `start`; plain `enumerate` counts from 0 after a crash."""
        for batch in self._loops.rest_of_epoch():
            yield start + self.batch, batch

    def __reduce_ex__(self, protocol: Any) -> Any:
        return int, (int(self),)

    def __iter__(self) -> Iterator[Any]:
        return self._loops.rest_of_epoch()


class Loops:
    """The loops of a run."""

    def __init__(self, run: LoopRun) -> None:
        self.run = run
        self._data: LoopData | None = None
        self._is_in_epochs = self._is_in_pass = False
        self._is_exhausted = False  # the running epoch
        self._is_left = False  # its loop, at a batch

    @contextmanager
    def _looping(self, name: str, length: int, data: LoopData | None) -> Iterator[bool]:
        """Run a loop; yield False if it was finished before the crash."""
        run, sequence = self.run, self.run.place.sequence
        sequence.demand_none_running(name)
        run.begin()
        run.enter_later_loop()
        position = run.place.position
        done = position.epoch if name.startswith("epochs(") else position.total - sequence.recorded.start.get("total", 0)
        decision = sequence.enter(name, length, self._begin, newest=run.read_newest_loop(), done=done)
        if sequence.shortened:
            run.report.warn(sequence.shortened, False)
        run.place.note_data(data)
        if decision == "finished":
            run.restarts.pass_finished(sequence.entered - 1)
            yield False
            return
        run.restarts.open(sequence.entered - 1)
        run.is_looping, run.place.turns, self._data = True, None, data
        try:
            if decision == "new" and sequence.entered > 1:
                run.commit_rest()
            yield True
        finally:
            run.leave_loop()

    def _begin(self) -> dict[str, int]:
        """Begin a new loop with the first batch of an epoch; return the number of batches of the run."""
        position, source = self.run.place.position, self.run.place.source
        position.total += self._is_left  # the batch at which `break` left the loop before
        if position.seen or self._is_left:
            position.passes += 1
            if source is not None:
                source.close()
        self._is_left = self._is_exhausted = False
        position.epoch = position.batch = position.seen = 0
        return {"total": position.total}

    @property
    def _done(self) -> int:
        """Number of batches, or turns, of the running loop that are done."""
        return self.run.place.position.total - self.run.place.sequence.start("total")

    def epochs(self, count: int, data: LoopData | None, function: str) -> Iterator[Epoch]:
        """Yield the epochs that are left, each to be iterated over for its batches."""
        with self._looping(name_loop("epochs", function), count, data) as is_left:
            if not is_left:
                return
            run, position = self.run, self.run.place.position
            count = run.place.sequence.current.length or 0
            self._is_in_epochs = True
            try:
                if data is not None:
                    run.take_data(data)
                while position.epoch < count:
                    if position.batch == 0:
                        run.come_back()
                    self._is_exhausted = False
                    self._is_left = False
                    run.loop_end = f"in epoch {position.epoch + 1} of {count}"
                    yield Epoch.of(self)
                    self._leave_epoch()
                    self._next_epoch()
                    run.note_end(of_loop=position.epoch >= count)
                    run.boundary(is_epoch_end=True)
                run.loop_end = "complete"
                run.come_back()
            finally:
                self._is_in_epochs = False

    def _leave_epoch(self) -> None:
        """Count the batch at which `break` left the loop over an epoch: the next epoch begins with its first batch."""
        position = self.run.place.position
        if self._is_exhausted:
            return
        if not self._is_left:
            raise UsageError(
                f"{self.run.settings.shared.run}: epoch {position.epoch + 1} gave no batch, so nothing of it would be logged. "
                "Write `for epoch in optimizer.epochs(...)`, and inside it `for batch in epoch`"
            )
        position.total += 1
        if self.run.place.source is not None:
            self.run.place.source.close()

    def batches(self, data: LoopData, until: int | None, function: str, *, numbered: bool) -> Iterator[Any]:
        """Yield the rest of the running epoch; outside of `epochs`, the batches of all epochs up to number `until`.

        If `numbered`, each comes with its number in the epoch, or in the loop.
        """
        is_in_epochs = self._is_in_epochs
        for batch in self._batches(data, until, name_loop("batches", function)):
            yield (self.run.place.position.batch if is_in_epochs else self._done, batch) if numbered else batch

    def _batches(self, data: LoopData, until: int | None, name: str) -> Iterator[Any]:
        if self._is_in_epochs:
            if self._data is not None and self._data.given is not data.given:
                raise UsageError(
                    "epochs() were given other data than batches(). Give the data that are trained on to one of them, and "
                    "iterate over others (validation) directly"
                )
            self.run.place.note_data(data)
            self._data = data
            yield from self.rest_of_epoch()
            return
        if until is None:
            raise UsageError(
                "batches() outside of epochs() needs until=..., the number of batches of the loop. Or take the epochs "
                "from optimizer.epochs(n), which leaves finished ones out"
            )
        with self._looping(name, until, data) as is_left:
            if not is_left:
                return
            run, position = self.run, self.run.place.position
            until = position.total - self._done + (run.place.sequence.current.length or 0)
            if position.total >= until:
                run.take_data(data)
                run.come_back()
            while position.total < until:
                before, run.loop_end = position.total, f"before batch {until - position.total + self._done}"
                yield from self.rest_of_epoch(until)
                if self._is_exhausted and position.total < until:
                    if position.total == before and position.batch == 0:
                        return  # empty data would be asked for ever
                    self._next_epoch()
            run.loop_end = "complete"

    def rest_of_epoch(self, until: int | None = None) -> Iterator[Any]:
        """Yield the batches of the running epoch that are left, with a boundary after each."""
        if not self.run.is_looping or self._is_in_pass:
            raise UsageError("an epoch is iterated over once, inside the loop over optimizer.epochs(...)")
        if self._data is None:
            raise UsageError("epochs() needs data to iterate over an epoch: optimizer.epochs(count, data)")
        run, position = self.run, self.run.place.position
        source = run.take_data(self._data)
        is_resumed = run.come_back()
        if position.batch == 0:
            source.refresh()
        source.prepare(position.passes, position.seen, is_amid=position.batch > 0)
        source.entered(is_amid=position.batch > 0)
        batches = self._open(source, is_resumed=is_resumed)
        self._is_in_pass = True
        run.restarts.open_pass(has_epochs=True)
        try:
            while until is None or position.total < until:
                try:
                    batch = next(batches)
                except StopIteration:
                    self._is_exhausted = True
                    source.close()
                    return
                self._is_left = True
                yield batch
                self._is_left = False
                position.batch += 1
                position.seen += 1
                position.total += 1
                if position.total == until:
                    run.note_end(of_loop=True)
                run.boundary()
                if run.place.was_set_back:
                    source.prepare(position.passes, position.seen, is_amid=True)
                    source.entered(is_amid=True)
                    batches = self._open(source, is_resumed=True)
        finally:
            self._is_in_pass = False

    def _open(self, source: Source, *, is_resumed: bool) -> Iterator[Any]:
        """Open the data after the batches of the present pass that are done."""
        position = self.run.place.position
        batches: Iterator[Any] = iter(source.open(position.passes, position.seen))
        if is_resumed and position.seen:
            self.run.set_random_states()
        return batches

    def _next_epoch(self) -> None:
        position = self.run.place.position
        position.epoch, position.batch, position.seen = position.epoch + 1, 0, 0
        position.passes += 1
        self._is_exhausted = False

    def steps(self, until: int, function: str, *, stateless: bool) -> Iterator[int]:
        """Yield the number of each turn of a loop without data, from 0; a boundary follows each."""
        with self._looping(name_loop("steps", function), until, None) as is_left:
            if not is_left:
                return
            run, position = self.run, self.run.place.position
            until = run.place.sequence.current.length or 0
            run.note_turns(stateless=stateless)
            run.come_back()
            while self._done < until:
                run.loop_end = f"in turn {self._done + 1} of {until}"
                yield self._done
                position.total += 1
                if self._done == until:
                    run.note_end(of_loop=True)
                run.boundary()
            run.loop_end = "complete"
