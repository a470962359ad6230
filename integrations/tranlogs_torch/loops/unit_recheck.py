"""The newest unit before a crash, which the script's own loop computes again: what follows from the comparison.

Several ranks conclude together. They ask each other at the first boundary after a step, which all of them pass, and at those
that follow until the unit is over. All go on after the unit, or all set back what each has recorded. Where steps are computed
again of which the log has no tensors, they ask at each recorded boundary; if something differs, what they compute holds.

outcomes of the ranks                                       verdict
a rank differs                                              different: all ranks set back what they have recorded
some ranks have come to the end of the unit, others not     different
all have come to its end, and are equal                     equal
all are in the middle of the unit                           none yet
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal

from tranlogs.base.notes import Note, coded
from tranlogs.ranks import extend_timeline_ids, get_timeline_ids, new_timeline_id
from tranlogs.training import (
    LOOP_LENGTH,
    PASSES,
    REMEMBERED_NAMES,
    UNKNOWN_DATA,
    LastUnit,
    RecomputedUnit,
    Recovered,
    UnitComparison,
    describe_difference,
    describe_equal,
    is_rounding,
)

from ..state.caveats import IMPLICIT, causes
from .run_parts import RunParts

# Parts of a boundary that depend on the process: where it began, whether it has learned that gradients are cleared before the
# next step (the gradients themselves are compared with each step), how an earlier unit differed, whether ranks have found out
# at a checkpoint that they differ, whether the script has changed something before its loop, and what a rank keeps of another
# one, which compares that itself.
_OF_EACH_PROCESS = (
    *("start_rng", "flags", "waiting", "deviation", "ddp.is_divided", "beside", "script_changes", "restarts"),
    LOOP_LENGTH,
    PASSES,
    REMEMBERED_NAMES,
)
# Why a unit outside of all loops is not computed again if the script tracks a loader: a plain loop takes other batches.
OUTSIDE = "the newest steps were taken outside of batches(), epochs() and steps(), in a loop that starts over"


class UnitRecheck(RecomputedUnit):
    """Compares the unit that is computed again, and sets the recorded state back where it differs.

    Args:
        parts: of the run.
        recover_end: brings everything to the boundary that ends a unit, which is the newest one.
        on_set_back: called when the recorded state was set back in the middle of a loop.

    Attributes:
        ignored: paths in the body of a boundary that are not compared: wall-clock times of a trainer, and what depends on the
            process.
        times: names of measured times among these.
        obstacle: why no unit is computed again, although the settings ask for it; "" if one is.
        starts_timeline: True if a new timeline follows the unit, which all ranks begin together.
    """

    def __init__(self, parts: RunParts, recover_end: Callable[[LastUnit], Recovered], on_set_back: Callable[[], None]) -> None:
        super().__init__(parts.settings.run, parts.journal, parts.report)
        self._parts, self._recover_end, self._on_set_back = parts, recover_end, on_set_back
        self.ignored, self.times = set(_OF_EACH_PROCESS), list[str]()
        self.obstacle = ""
        self.starts_timeline = False

    def _find_other_obstacle(self, read_recorded: Callable[[str], Any]) -> str:
        if read_recorded("is_implicit") and self._parts.auxiliary.has_loaders:
            return OUTSIDE
        return self._parts.coordinator.find_unit_obstacle(read_recorded)

    def begin(self, found: Recovered) -> None:
        """Let the journal compare the unit after the position where recovery has landed, if there is one to be computed."""
        if found.last_unit is None:
            return
        # A resume may add to what is doubted of a loader (random numbers of its workers, generators of its dataset), and may
        # give seeds to workers: that is said, and what they draw shows in what follows.
        parts = ("doubts", "moved", "sizes.worker_seeds")
        doubts = {f"data.{name}.head.{part}" for name in self._parts.auxiliary.read_data() for part in parts}
        recheck = self._begin(found.last_unit, found.position.step, self.ignored | doubts)
        self._parts.auxiliary.deviation = recheck.read_recorded("deviation")

    def name_strangers(self) -> None:
        """Name what only the script has, or only the run, before the first step after a recovery, and do not compare it."""
        auxiliary = self._parts.auxiliary
        landed = auxiliary.go_on()
        if landed is not None and self._recheck is not None and self.is_pending:
            self.ignore_strangers(landed, self._recheck.read_recorded("tracked") or {}, auxiliary.tracked)

    def settle(self) -> bool:
        """Draw the conclusion at a boundary if the unit is over on all ranks; return True if it is."""
        recheck, coordinator = self._recheck, self._parts.coordinator
        if recheck is None or not self.is_pending or not self._is_due(recheck):
            return False
        outcomes = [UnitOutcome(*packed) for packed in coordinator.all_gather(self._describe_outcome(recheck).pack())]
        self.wants_checkpoint = any(one.wants_checkpoint for one in outcomes)
        verdict = conclude(outcomes)
        if verdict is None:
            return False
        self._conclude(recheck, verdict, outcomes)
        self._start_timeline()
        return True

    def _start_timeline(self) -> None:
        """Begin the new timeline, if there is one, in the journals of all ranks before the first record."""
        if self.starts_timeline:
            self._parts.journal.start()
            self._parts.coordinator.all_gather(True)

    def _is_due(self, recheck: UnitComparison) -> bool:
        """Return True if all ranks ask each other at this boundary; other boundaries may be this rank's alone."""
        if self._parts.coordinator.is_single:
            return recheck.is_over
        return self._parts.journal.step > recheck.unit.start.step

    def _describe_outcome(self, recheck: UnitComparison) -> UnitOutcome:
        difference, report = recheck.difference, self._parts.report
        about = recheck.equal.step, self._parts.journal.log.next_timeline, new_timeline_id(), self.wants_checkpoint
        if difference is None:
            return UnitOutcome(recheck.is_over, "", False, "", *about)
        note = describe_difference(
            difference,
            causes=causes(report.face),
            starts_over=report.starts_over,
            recomputed=recheck.unit if recheck.unit.is_covered else None,
            is_repeatable=self._parts.rung.is_repeatable,
        )
        return UnitOutcome(recheck.is_over, note.sentence, not is_rounding(difference), note.line, *about)

    def _end_together(self, recheck: UnitComparison, outcomes: Sequence[UnitOutcome]) -> None:
        """Let the log go on behind the newest boundary that is equal on all ranks, on a timeline that they begin together."""
        parts, step = self._parts, min(one.equal_step for one in outcomes)
        ids = get_timeline_ids(parts.environment)
        parts.environment.update(past=extend_timeline_ids(ids, step, outcomes[0].timeline_id))
        self.starts_timeline = True
        self._end(recheck.position_at(step), max(one.next_timeline for one in outcomes))

    def _conclude(self, recheck: UnitComparison, verdict: UnitVerdict, outcomes: Sequence[UnitOutcome]) -> None:
        parts, report = self._parts, self._parts.report
        if recheck.unit.is_covered and verdict.kind == "different" and len(outcomes) > 1:
            self._end_together(recheck, outcomes)
        else:
            self._end()
        if verdict.kind == "equal":
            # How many turns are left of a loop of the script's own is known if it keeps its state in the run.
            # An equal unit removes doubts about what the loop keeps.
            refuted = {UNKNOWN_DATA.code, *((IMPLICIT.code,) if parts.auxiliary.is_loop_remembered else ())}
            report.recheck, report.refuted = "equal", frozenset(refuted)
            parts.coordinator.restore_division(_read_division(recheck))
            recheck.close()
            first = recheck.unit.start.step + 1 if recheck.unit.is_covered else None
            self._print(describe_equal(parts.journal.step, parts.coordinator.world, self.times, first=first))
            return
        # A loop of the script's own may start over. That it differs then shows nothing, unless the run keeps its state.
        is_outside = bool(parts.auxiliary.is_outside or recheck.read_recorded("is_implicit"))
        is_wrong = verdict.is_wrong and (not is_outside or parts.auxiliary.is_loop_remembered)
        recheck.close()
        report.recheck = "different"
        if not recheck.unit.is_covered:
            self.recovered = self._recover_end(recheck.unit)
        parts.auxiliary.deviation = parts.auxiliary.deviation or (str(verdict.notes[0]), is_wrong)
        if self.recovered is not None:
            self._on_set_back()
        for note in verdict.notes:
            if parts.coordinator.rank == 0:
                report.warn(note, is_wrong)
            else:  # rank 0 warns of it
                report.caveats.append((note, is_wrong))

    def read_end(self) -> dict[str, Any]:
        """Return the body of the boundary that ends the unit."""
        assert self._recheck is not None
        body: dict[str, Any] = self._parts.state.decode_boundary(self._recheck.end)
        return body

    def supersede(self, number: int) -> LastUnit:
        """Compare nothing, and let a new timeline begin where recovery has landed. All ranks must call it with one number.

        Returns:
            The unit that the log does not lead to any more.
        """
        unit = self._supersede(number)
        self.starts_timeline |= not self._parts.coordinator.is_single
        self._start_timeline()
        return unit

    def abandon(self) -> Recovered:
        """Recover to the newest boundary after all, before a loop begins. All ranks must call it."""
        found = self._recover_end(self._give_up())
        self._start_timeline()
        return found

    def _print(self, text: str) -> None:
        if self._parts.coordinator.rank == 0:
            print(f"TranLogs: {self._parts.settings.run}: {text}", file=sys.stderr, flush=True)


def _read_division(recheck: UnitComparison) -> dict[str, Any]:
    """Return the division of the log among the ranks, from the boundary that ends the unit."""
    found = {name: recheck.read_recorded(name) for name in ("ddp", "equal")}
    return {name: value for name, value in found.items() if value is not None}


_TEXTS_MAX = 2  # ranks whose difference is described in full


@dataclass(frozen=True, slots=True)
class UnitOutcome:
    """Outcome of the recheck on one rank.

    Attributes:
        is_over: True if the rank has come to the end of its unit.
        text: the difference between its unit and the record; "" if there is none.
        is_wrong: True if the difference is larger than a rounding error.
        line: its usual cause, and what to do.
        equal_step: step of the newest boundary that is equal.
        next_timeline: the number of the next timeline that the journal of the rank begins.
        timeline_id: an id for it.
        wants_checkpoint: True if the rank wants a checkpoint of what was computed again so far.
    """

    is_over: bool
    text: str = ""
    is_wrong: bool = False
    line: str = ""
    equal_step: int = 0
    next_timeline: int = 0
    timeline_id: str = ""
    wants_checkpoint: bool = False

    def pack(self) -> list[Any]:
        """Return the outcome as plain values that can be sent to other ranks."""
        return list(astuple(self))


@dataclass(frozen=True, slots=True)
class UnitVerdict:
    """Verdict that all ranks follow.

    Attributes:
        kind: see the table of the module.
        notes: what differs, and on which ranks.
        is_wrong: True if a difference is larger than a rounding error.
    """

    kind: Literal["equal", "different"]
    notes: tuple[Note, ...] = ()
    is_wrong: bool = False


def conclude(outcomes: Sequence[UnitOutcome]) -> UnitVerdict | None:
    """Return the verdict on the outcomes of all ranks, by rank; None if it is not known yet."""
    notes = {rank: Note("different", one.text, one.line) for rank, one in enumerate(outcomes) if one.text}
    if notes:
        return UnitVerdict("different", _name_ranks(notes, len(outcomes)), any(one.is_wrong for one in outcomes))
    if all(one.is_over for one in outcomes):
        return UnitVerdict("equal")
    late = [rank for rank, one in enumerate(outcomes) if not one.is_over]
    if len(late) == len(outcomes):
        return None
    text = (
        f"rank {late[0]} has not come to the end of its unit, and others have: the script's loop divides its work differently"
    )
    return UnitVerdict("different", (Note("different", text),), True)


def _name_ranks(notes: dict[int, Note], world: int) -> tuple[Note, ...]:
    """Return the notes with their ranks; one alone if all ranks have the same."""
    if len(notes) == world and len(set(notes.values())) == 1:
        return (notes[0],)
    found = [Note(note.code, f"rank {rank}: {note.sentence}", note.line) for rank, note in notes.items()]
    more = len(found) - _TEXTS_MAX
    others = [f"{more} more ranks differ from their records, too"] if more > 0 else []
    return (*found[:_TEXTS_MAX], *coded("different", others))
