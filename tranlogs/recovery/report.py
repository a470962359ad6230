"""Report of a recovery, the verdict whether replay is known to be bit-exact, and the progress bar of long work."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..base.notes import Note
from .recover import Progress, Recovered

RecheckState = Literal["", "pending", "equal", "different"]


@dataclass(frozen=True, slots=True)
class Restart:
    """A value of the script that changes while its loop runs, and that the run does not keep: it starts over at each start.

    Attributes:
        code: which line keeps it. "remember": `optimizer.remember(...)`; "track": `optimizer.track(...)` of its owner; "state":
            state_dict() of its owner, which is tracked; "extra": the same of a module; "fit": an attribute of a callback of the
            fit; "exportable": a callback with `state()`; "lightning": an attribute of a module or callback. "again " before it:
            code between loops ran again, and gave another value; "left ": code behind a finished loop reads it; "epoch " or
            "pass ": it starts over where an epoch of `epochs()`, or a pass of a trainer's loop, is entered in its middle.
        name: as the script writes it ("best", "stopper.count").
        first: the value with which it begins, as a line of Python has it; "..." if that is not short.
        owner: the object that has it as an attribute; "" if it is a variable, or what is written like one.
        kind: class of the owner.
        has_state: True if the owner has `state_dict` and `load_state_dict`.
        note: the note about it.
    """

    code: str
    name: str
    first: str
    owner: str = ""
    kind: str = ""
    has_state: bool = False
    note: Note | None = None


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """Report of a recovery: the step at which the run resumes, and how recovery reached that step.

    Attributes:
        step: the number of optimizer steps applied.
        loop: the number of the loop that was running, from 1, in the order in which the script enters them.
        batch: the number of batches, or turns, of this loop that are done. Where no loop of `LoggedOptimizer` was running, the
            loop is number 1, and its epochs and batches are those of the whole run.
        epoch: the epoch of this loop that continues, from 0, or its last one if it has ended; the line that is printed counts
            from 1.
        timeline: the timeline that the next record belongs to.
        checkpoint_step: the step of the checkpoint where replay started; None for a new run.
        replayed: the number of steps redone from the log.
        seconds: the time that recovery took, from reading the files to the last redone step.
        seconds_replay: the part of that time in which steps were redone.
        exact: True if every redone step was compared and equal, False if a step or the order of the data differed, None if
            this is not known.
        first_divergent_step: the first step that differed.
        notes: what else to know. Each is a text with a code (`note.code`), a sentence and what to do (`note.line`).
        recheck: state of the newest unit before the crash: "pending" until training has computed it again, then "equal" or
            "different"; empty if it is not computed again.
        rechecked: the number of steps that were computed again and are equal.
        seconds_recheck: the time in which they were compared with the log.
        forecast: for a new run, how much it writes and when its next checkpoint comes; else empty.
        is_at_start: True if the state is that of the beginning, before the first batch, and no record was lost.
        end: for a run whose script came to its end before, what that means for this start; else empty.
        restarts: values of the script that start over; each is in a note, too.
    """

    step: int = 0
    loop: int = 1
    batch: int = 0
    epoch: int = 0
    timeline: int = 1
    checkpoint_step: int | None = None
    replayed: int = 0
    seconds: float = 0.0
    seconds_replay: float = 0.0
    exact: bool | None = True
    first_divergent_step: int | None = None
    notes: tuple[Note, ...] = ()
    recheck: RecheckState = ""
    rechecked: int = 0
    seconds_recheck: float = 0.0
    forecast: str = ""
    is_at_start: bool = False
    end: str = ""
    restarts: tuple[Restart, ...] = ()

    @property
    def starts_over(self) -> bool:
        """True if nothing was committed before the crash, so that the run starts from the beginning."""
        return self.is_at_start and not self.recheck

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values, for JSON."""
        return {**asdict(self), "notes": [note.as_dict() for note in self.notes]}

    def __str__(self) -> str:
        notes = "".join(f"\n  {note}" for note in self.notes)
        if self.checkpoint_step is None:
            forecast = f" ({self.forecast})" if self.forecast else ""
            return f"fresh run: step 0{forecast}{notes}"
        if self.starts_over:
            return f"starts from the beginning: nothing was recorded before the crash (step 0, {self.seconds:.2f} s){notes}"
        return (
            f"recovered to step {self.step} ({self._place()}checkpoint {self.checkpoint_step} + {self.replayed} replayed, "
            f"{self.seconds:.2f} s, {self._verdict()}){f': {self.end}' if self.end else ''}{notes}"
        )

    def _verdict(self) -> str:
        """Return the word for what is known; it is of the state alone if the loop was not tried, or starts over in part."""
        if self.exact is False:
            return "NOT exact" if self.first_divergent_step is None else f"NOT exact from step {self.first_divergent_step}"
        if self.recheck == "pending":
            return "being proven"
        if self.exact is None:
            return "not verified"
        return "bit-exact" if self.recheck and not self.restarts else "state bit-exact"

    def _place(self) -> str:
        if not self.batch:  # a loop without a count, or a trainer that reports its position itself
            return ""
        epoch = f"epoch {self.epoch + 1}, " if self.epoch else ""
        epoch = f"loop {self.loop}, {epoch}" if self.loop > 1 else epoch
        return f"{epoch}after {self.batch} batch{'' if self.batch == 1 else 'es'}, "


def judge_exactness(found: Recovered, kinds: Collection[str], *, compared: str) -> tuple[bool | None, list[Note]]:
    """Return whether replay was bit-exact, and the reasons for doubt.

    Args:
        kinds: the kinds of fingerprints that were compared: "full", "sample", "device".

    Returns:
        True if every redone step was compared and equal, False if a step differed, None if this is not known.
    """
    exact: bool | None = True
    notes = []
    if found.replayed and not kinds:
        exact = None
    if "sample" in kinds:
        exact = None
        text = f"redone steps were compared by a rotating sample of the {compared}, which does not cover the rest"
        notes.append(Note("replay-sampled", text, 'fingerprint="full" compares all of them'))
    if found.divergence is not None:
        exact = False
        first = found.divergence
        why = "this environment rounds differently, or a write that was not logged set the value"
        text = f"step {first.step} is the first redone step that differs, in {first.tensor}: {why}"
        notes.append(Note("replay-differs", text))
    return exact, notes


def make_report(
    found: Recovered,
    *,
    exact: bool | None,
    notes: Iterable[Note],
    place: tuple[int, int, int],
    seconds: float,
    timeline: int | None = None,
) -> RecoveryReport:
    """Return the report of a recovery, with each note once.

    Args:
        place: number of the loop, from 1, its epoch, from 0, and the number of its batches that are done.
        timeline: the timeline of the next record; None if it is that of the last one.
    """
    loop, epoch, batch = place
    return RecoveryReport(
        step=found.position.step,
        loop=loop,
        batch=batch,
        epoch=epoch,
        timeline=found.position.timeline if timeline is None else timeline,
        checkpoint_step=found.plan.checkpoint.step,
        replayed=found.replayed,
        seconds=seconds,
        seconds_replay=found.seconds_replay,
        exact=exact,
        first_divergent_step=found.divergence.step if found.divergence else None,
        notes=tuple(dict.fromkeys(notes)),
        is_at_start=found.position.sequence == 0 and exact is not False and not found.has_losses and not found.steps_lost,
    )


@contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """Yield a callback (what, done, total) that draws a bar on stderr; None if stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield progress
