"""The sequence of loops of a run: `batches`, `epochs` and `steps`, in the order in which the script enters them.

Each loop counts from 0. After a crash the script runs from its start and enters its loops again:

| loop that the script enters | decision | what it yields |
|---|---|---|
| one before the recorded loop | finished | nothing |
| the recorded loop, which had ended before code outside of loops | finished | nothing |
| the recorded loop | running | what is left |
| one after the recorded loop | new | all |

The recorded loop is the one of the boundary at which recovery has landed. Its length may be another, unless the log has a later
loop (of the unit that is computed again). A loop of another kind, from another function, or of another length is refused: else
a loop that the script has put before the others would be taken for the first of them. What the log has of a later loop is
compared, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tranlogs.base.errors import UsageError
from tranlogs.base.notes import Note

LOOP_LENGTH = "loop.length"  # path of a value in the body of a boundary that the script may change
_NAMES_MAX = 255  # more different loops are not told apart

LoopKind = Literal["epochs", "batches", "steps"]
LoopDecision = Literal["finished", "running", "new"]


@dataclass(frozen=True, slots=True)
class LoopRecord:
    """Loop of a run, as a boundary records it.

    Attributes:
        names: names of the different loops until now: kind and function.
        loops: for each loop until now, the number of its name.
        is_open: True if the loop was running at the boundary.
        length: number of epochs, batches or turns that the script has given; None for no limit.
        before: the lengths of the loops before it.
        start: counters of the run at the beginning of the loop.
        source: name of the loader that gives the batches; "" for none.
    """

    names: tuple[str, ...] = ()
    loops: bytes = b""
    is_open: bool = False
    length: int | None = None
    start: Mapping[str, int] = field(default_factory=dict)
    source: str = ""
    before: tuple[int | None, ...] = ()

    @classmethod
    def read(cls, body: Mapping[str, Any] | None) -> LoopRecord:
        """Return the record in the body of a boundary; an empty one for a run without a loop."""
        if not body:
            return cls()
        lists = {name: tuple(body[name]) for name in ("names", "before")}
        return cls(**{**body, **lists, "loops": bytes(body["loops"]), "start": dict(body["start"])})

    def as_body(self) -> dict[str, Any]:
        """Return the record as plain values."""
        return {
            "names": list(self.names),
            "loops": self.loops,
            "is_open": self.is_open,
            "length": self.length,
            "start": dict(self.start),
            "source": self.source,
            "before": list(self.before),
        }

    @property
    def count(self) -> int:
        """Number of loops until now."""
        return len(self.loops)

    def name_of(self, number: int) -> str:
        """Return the name of a loop; "" if it is not known."""
        index = self.loops[number - 1] if number <= len(self.loops) else _NAMES_MAX
        return self.names[index] if index < len(self.names) else ""

    def length_of(self, number: int) -> int | None:
        """Return the length of one of the loops."""
        return self.length if number == self.count else self.before[number - 1]

    def find_epoch(self, epoch: int, batch: int) -> int:
        """Return the epoch that continues, from 0; of a loop that has ended, its last one.

        Args:
            epoch: number of epochs of the loop that are done.
            batch: number of batches of the next one that are done.
        """
        is_over = not self.is_open or (self.length is not None and epoch >= self.length)
        return epoch - 1 if is_over and epoch and not batch else epoch


_NO_LOOP = LoopRecord()


def decide_entry(number: int, name: str, length: int | None, recorded: LoopRecord, newest: LoopRecord) -> LoopDecision:
    """Return what a loop is that the script enters.

    Args:
        number: of the loop, from 1, in the order in which this process enters them.
        name: kind and function of the loop.
        length: as the script gives it.
        recorded: loop at which recovery has landed.
        newest: loop of the newest boundary in the log, if a unit before it is computed again; else an empty record.

    Raises:
        UsageError: the run had another loop in its place.
    """
    known = recorded if number <= recorded.count else newest
    if number > known.count:
        return "new"
    was = known.name_of(number)
    if was and was != name:
        raise UsageError(
            f"loop {number} of the run was optimizer.{was}, and is now optimizer.{name}. Loops are numbered in the order in "
            f"which the script enters them, and a finished loop keeps its place. Write optimizer.{was} there again, also if "
            "it is finished or a condition passes it over (it yields nothing then), and new loops after it; or give another "
            "folder for another training"
        )
    if length != known.length_of(number) and not (number == known.count and newest.count <= number):
        raise UsageError(
            f"{describe_length(number, name, length, known)}. Loops are numbered in the order in which the script enters them, "
            "and only the last one may have another length. Give the loop its length again, also if it is finished, and write "
            "new loops after it. For another training give another folder"
        )
    if number > recorded.count:
        return "new"
    return "running" if number == recorded.count and recorded.is_open else "finished"


def describe_length(number: int, name: str, length: int | None, known: LoopRecord) -> str:
    """Return that a loop has another length than recorded."""
    was, now = ("no limit of" if one is None else str(one) for one in (known.length_of(number), length))
    return f"loop {number} of the run, optimizer.{name}, had {was} {name.partition('(')[0]}, and now has {now}"


class LoopSequence:
    """The loops that a process has entered.

    Attributes:
        entered: number of loops that this process has entered.
        recorded: loop of the boundary at which recovery has landed.
        current: the loop that was entered last; the recorded one before the first is entered.
        shortened: a note if the running loop has a length of which nothing is left.
    """

    def __init__(self) -> None:
        self.entered = 0
        self.shortened: Note | None = None
        self.recorded = self.current = LoopRecord()
        self._running = ""

    def land(self, body: Mapping[str, Any] | None) -> None:
        """Take over the loop of a boundary to which the run was brought back."""
        self.recorded = LoopRecord.read(body)
        if self.recorded.count >= self.entered:
            self.current = self.recorded

    def demand_none_running(self, name: str) -> None:
        """Refuse a loop inside another one.

        Raises:
            UsageError: a loop of the run is running.
        """
        if self._running:
            raise UsageError(
                f"one loop of LoggedOptimizer runs inside another: optimizer.{name} begins while optimizer.{self._running} is "
                "running. Only the outer loop's batches are places to come back to. Iterate over the data of an inner loop "
                "(validation, a second source) directly: `for batch in loader`, zip(optimizer.batches(...), loader). If the "
                "outer loop was left by break, and a variable still holds it (a progress bar), delete that variable first"
            )

    def enter(
        self,
        name: str,
        length: int | None,
        read_start: Callable[[], Mapping[str, int]],
        source: str = "",
        *,
        newest: LoopRecord = _NO_LOOP,
        done: int = 0,
    ) -> LoopDecision:
        """Enter the next loop.

        Args:
            name: its kind and function.
            length: as the script gives it.
            read_start: called if the loop is new; returns the counters of the run at its beginning.
            source: name of the loader that gives the batches.
            newest: loop of the newest boundary in the log, if a unit before it is computed again; else an empty record.
            done: epochs, batches or turns that are done of the recorded loop.

        Raises:
            UsageError: the run had another loop in its place.
        """
        number, self.shortened = self.entered + 1, None
        decision = decide_entry(number, name, length, self.recorded, newest)
        self.entered = number
        if decision == "new":
            names, loops = self.current.names, self.current.loops
            if name not in names:
                names = (*names, name)
            self.current = LoopRecord(
                names,
                loops + bytes([min(names.index(name), _NAMES_MAX)]),
                True,
                length,
                dict(read_start()),
                source,
                (*self.current.before, self.current.length) if loops else (),
            )
        elif decision == "running":
            if source != self.recorded.source:
                was, now = self.recorded.source or "no loader", source or "no loader"
                raise UsageError(
                    f"loop {number} of the run, optimizer.{name}, took its batches from {was!r}, and now from {now!r}. Give it "
                    "the same loader, tracked under the same name"
                )
            self.current = replace(self.recorded, is_open=True, length=length)
            if length and length != self.recorded.length and length <= done:
                self.shortened = Note(
                    "loops-changed",
                    f"{describe_length(number, name, length, self.recorded)}, of which nothing is left",
                    "If the script has a new loop before the one in which the run stood, write it after that one",
                )
        if decision != "finished":
            self._running = name
        return decision

    @property
    def is_new(self) -> bool:
        """True if the loop that was entered last is none of the recorded ones."""
        return self.entered > self.recorded.count

    def start(self, counter: str) -> int:
        """Return what a counter of the run was at the beginning of the loop that runs."""
        return self.current.start.get(counter, 0)

    def leave(self) -> None:
        """End the loop that is running."""
        self._running = ""

    def read(self) -> LoopRecord:
        """Return the record of the loop that runs, or ran last, for a boundary."""
        current = self.current
        is_open = bool(self._running) or (self.entered < self.recorded.count and current.is_open)
        if is_open == current.is_open:
            return current
        self.current = replace(current, is_open=is_open)
        return self.current

    @property
    def is_over(self) -> bool:
        """True if the log has a later loop than the one that is running: the state was brought back to that one."""
        return bool(self._running) and self.recorded.count > self.entered

    @property
    def has_finished(self) -> bool:
        """True if a loop was finished where recovery has landed."""
        return self.recorded.count > self.recorded.is_open

    @property
    def is_before_recorded(self) -> bool:
        """True if this process has entered loops, and not yet the one in which the run stood."""
        return 0 < self.entered < self.recorded.count and self.recorded.is_open

    def demand_no_step_between(self) -> None:
        """Refuse a step outside of all loops that the run has taken before the crash: a later loop was entered after it.

        Raises:
            UsageError: this process has entered loops, but not yet the last one of the run.
        """
        if not 0 < self.entered < self.recorded.count:
            return
        last = "in which the run stood" if self.recorded.is_open else "which is finished, too"
        raise UsageError(
            f"a step is taken outside of all loops, after loop {self.entered} of the run, which is finished, and before loop "
            f"{self.recorded.count}, {last}. It was taken before the crash, and would be taken twice. Take such steps in a "
            "loop of their own: `for turn in optimizer.steps(1)`"
        )

    def describe_unreached(self) -> Note | None:
        """Return what it means that the script ended before the loop in which the run stood; None if it did not."""
        if not self.is_before_recorded and not (self.recorded.is_open and not self.entered):
            return None
        return Note(
            "unfinished",
            f"the script ended before it entered loop {self.recorded.count} of the run (optimizer."
            f"{self.recorded.name_of(self.recorded.count)}), in which the run stood, and trained nothing",
            "What decides whether that loop is entered belongs in optimizer.remember(...)",
        )


def name_loop(kind: LoopKind, function: str) -> str:
    """Return the name of a loop: its kind, and the function that has called it."""
    return f"{kind}(...) in the script" if function == "<module>" else f"{kind}(...) in {function}()"
