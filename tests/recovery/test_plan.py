"""Where recovery starts and lands: tables over histories, timelines, holes and damage; and the line that says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.support.record_rows import packed_head
from tranlogs.base.errors import RecoveryError
from tranlogs.catalog import CheckpointRow, SegmentRow, TimelineRow
from tranlogs.catalog.rows import is_on_lineage, trace_lineage
from tranlogs.log.record_format import Head, Location, RecordKind, unpack_head
from tranlogs.recovery.history import History, ScannedSegment, build_history, find_last_unit, without_unlogged_steps
from tranlogs.recovery.recovery_plan import RecoveryPlan, Target, plan_recovery
from tranlogs.recovery.report import RecoveryReport, Restart

STEP, IMAGE, BOUNDARY, UNIT = RecordKind.STEP, RecordKind.IMAGE, RecordKind.BOUNDARY, RecordKind.UNIT


@dataclass
class Run:
    """A journal's history, written step by step as a log would."""

    timeline: int = 1
    sequence: int = 0
    step: int = 0
    chain: int = 0
    segments: list[ScannedSegment] = field(default_factory=list)
    checkpoints: list[CheckpointRow] = field(default_factory=list)
    timelines: list[TimelineRow] = field(default_factory=lambda: [TimelineRow(1)])
    marked: int = 0
    places: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # step -> sequence, step, chain at its last boundary

    def __post_init__(self) -> None:
        self.roll()
        self.checkpoint()

    def roll(self) -> Run:
        """A new segment."""
        ordinal = len(self.segments) + 1
        row = SegmentRow(ordinal, f"{ordinal:016x}", f"{ordinal}.seg", 0, "sealed", self.timeline, self.sequence, self.step)
        self.segments.append(ScannedSegment(row, Path(row.file), []))
        self._place(RecordKind.SEGMENT, self.sequence, self.chain)
        return self

    def _place(self, kind: RecordKind, sequence: int, chain: int, covered: int = 0) -> Head:
        segment = self.segments[-1]
        head = unpack_head(packed_head(segment.row.ordinal, sequence, self.step, kind, 0, b"", chain, covered))
        assert head is not None
        assert isinstance(segment.locations, list)
        segment.locations.append(Location(head, 0))
        return head

    def log(self, *kinds: RecordKind) -> Run:
        for kind in kinds:
            self.step += kind.is_step
            self.sequence += 1
            self.chain = self._place(kind, self.sequence, self.chain).digest
            if kind.is_boundary:
                self.places[self.step] = self.sequence, self.step, self.chain
        return self

    def cover(self, *counts: int, names: int = 0) -> Run:
        """Boundaries that cover steps without tensors; `names` is added to the step that they name."""
        for count in counts:
            self.step += count + names
            self.sequence += 1
            self.chain = self._place(BOUNDARY, self.sequence, self.chain, count).digest
            self.places[self.step] = self.sequence, self.step, self.chain
        return self

    def steps(self, count: int) -> Run:
        for _ in range(count):
            self.log(*((UNIT,) if self.step % 3 else (STEP, BOUNDARY)))
        return self

    def checkpoint(self) -> Run:
        name = f"step-{self.step}-t{self.timeline}-{self.sequence}"
        at = float(len(self.checkpoints))
        self.checkpoints.append(CheckpointRow(name, self.step, self.sequence, f"{self.chain:016x}", self.timeline, 1, at))
        return self

    def go_back(self, step: int) -> Run:
        """Recover to a step and train on: a new timeline."""
        parent, self.timeline = self.timeline, max(row.number for row in self.timelines) + 1
        self.sequence, self.step, self.chain = self.places[step]
        self.timelines.append(TimelineRow(self.timeline, parent, self.sequence, self.step))
        self.roll()
        return self

    def restart(self, step: int | None = None) -> Run:
        """A process died behind `step`; the next one goes on from there on the same timeline."""
        self.sequence, self.step, self.chain = self.places[self.step if step is None else step]
        self.roll()
        return self

    def gap(self, steps: int) -> Run:
        """Logging was suspended for some steps and went on from a checkpoint."""
        self.step += steps
        self.sequence, self.chain = self.sequence + 1, 0xABCDEF + self.step
        self.places[self.step] = self.sequence, self.step, self.chain
        self.roll()
        return self.checkpoint()

    def mark(self, behind: int = 0) -> Run:
        """Mark the newest entry, or one that comes next, for `lose`."""
        self.marked = self.sequence + behind
        return self

    def lose(self) -> Run:
        """The marked entry cannot be found any more, wherever it lies."""
        for segment in self.segments:
            assert isinstance(segment.locations, list)
            segment.locations[:] = [at for at in segment.locations if at.head.sequence != self.marked or at.head.kind == 1]
        return self

    def lose_first_head(self) -> Run:
        """Nor the head of its segment."""
        (segment,) = [one for one in self.segments[1:] if any(at.head.sequence == self.marked for at in one.locations[1:])]
        assert isinstance(segment.locations, list)
        del segment.locations[0]
        return self.lose()

    def lose_segment(self, number: int) -> Run:
        del self.segments[number]
        return self

    def lose_checkpoint(self, number: int = -1) -> Run:
        self.checkpoints.pop(number)
        return self

    @property
    def limits(self) -> dict[int, int | None]:
        return trace_lineage(self.timelines, self.timelines[-1].number)

    @property
    def history(self) -> History:
        return build_history(self.segments, self.limits)

    def plan(
        self, step: int | None = None, *, broken: Sequence[str] = (), last_good: dict[int, int] | None = None
    ) -> RecoveryPlan:
        known = self.checkpoints, self.history, self.limits
        return plan_recovery(*known, Target(step), broken=broken, last_good=last_good)


LANDINGS: dict[str, tuple[Run, int, int, bool, str]] = {
    # By what happened: the run; the checkpoint that is loaded, the step that is reached, whether something later is given up,
    # and the timelines of the steps that are redone.
    "nothing": (Run().steps(5), 0, 5, False, "11111"),
    "a step has no boundary": (Run().steps(3).log(STEP), 0, 3, False, "111"),
    "a step and an image have no boundary": (Run().steps(3).log(STEP, IMAGE), 0, 3, False, "111"),
    "an image has no boundary": (Run().steps(3).log(IMAGE), 0, 3, False, "111"),
    "checkpoints": (Run().steps(3).checkpoint().steps(3).checkpoint().steps(2), 6, 8, False, "11"),
    "a checkpoint at the end": (Run().steps(4).checkpoint(), 4, 4, False, ""),
    "a checkpoint whose boundary is lost": (Run().steps(4).mark().checkpoint().lose(), 4, 4, False, ""),
    "a hole": (Run().steps(3).mark(1).steps(3).lose(), 0, 3, True, "111"),
    "a hole before a checkpoint": (Run().steps(3).mark(1).steps(2).checkpoint().steps(2).lose(), 5, 7, False, "11"),
    "a lost segment": (Run().steps(2).roll().steps(2).roll().steps(2).lose_segment(1), 0, 2, True, "11"),
    "a segment without its first entries": (Run().steps(2).roll().mark(1).steps(3).lose_first_head(), 0, 2, True, "11"),
    "a death behind a step": (Run().steps(3).log(STEP, IMAGE).restart(3).steps(2), 0, 5, False, "11111"),
    "a gap": (Run().steps(3).gap(4).steps(2), 7, 9, False, "11"),
    "a gap without its checkpoint": (Run().steps(3).gap(4).lose_checkpoint(), 0, 3, False, "111"),
    "steps after that": (Run().steps(3).gap(4).lose_checkpoint().restart(3).steps(1), 0, 4, False, "1111"),
    "gaps in a row": (Run().steps(1).gap(2).gap(3).steps(1), 6, 7, False, "1"),
    "gaps without checkpoints": (Run().steps(1).gap(2).gap(3).steps(1).lose_checkpoint().lose_checkpoint(), 0, 1, True, "1"),
    "a rewind": (Run().steps(6).go_back(3).steps(2), 0, 5, False, "11122"),
    "a rewind without a step": (Run().steps(6).go_back(3), 0, 3, False, "111"),
    "a checkpoint behind the fork": (Run().steps(2).checkpoint().steps(4).checkpoint().go_back(3).steps(1), 2, 4, False, "12"),
    "a checkpoint at the fork": (Run().steps(3).checkpoint().steps(3).go_back(3).steps(1), 3, 4, False, "2"),
    "a second rewind before the fork": (Run().steps(6).go_back(4).steps(3).go_back(2).steps(2), 0, 4, False, "1133"),
    "a second rewind behind the fork": (Run().steps(6).go_back(3).steps(4).go_back(5).steps(2), 0, 7, False, "1112233"),
    "a death on the new timeline": (
        Run().steps(6).go_back(3).steps(2).log(STEP).restart(5).steps(2),
        0,
        7,
        False,
        "1112222",
    ),
    "a rewind over segments": (
        Run().steps(2).roll().steps(2).roll().steps(2).roll().go_back(3).steps(1).roll().steps(1),
        0,
        5,
        False,
        "11122",
    ),
}


@pytest.mark.parametrize("what", LANDINGS)
def test_where_recovery_starts_and_lands(what: str) -> None:
    run, checkpoint, landing, has_later, timelines = LANDINGS[what]
    plan = run.plan()
    assert (plan.checkpoint.step, plan.position.step, plan.has_later) == (checkpoint, landing, has_later)
    redone = [link for link in plan.links if link.kind.is_step]
    assert [link.step for link in redone] == list(range(checkpoint + 1, landing + 1))
    assert "".join(str(link.segment.row.timeline) for link in redone) == timelines
    assert plan.position.timeline == run.timelines[-1].number
    if landing == run.step and run.sequence == run.places[landing][0]:
        assert (plan.position.sequence, plan.position.chain) == (run.sequence, run.chain)


def test_holes_are_named() -> None:
    told = {what: " ".join(LANDINGS[what][0].plan().notes) for what in ("a hole", "a lost segment")}
    assert "damaged or missing" in told["a hole"]
    assert "after step 3" in told["a hole"]
    assert "between 1.seg and 3.seg: steps 3 to 4" in told["a lost segment"]


def test_a_damaged_checkpoint_is_passed_over_and_named() -> None:
    run = Run().steps(3).checkpoint().steps(2)
    plan = run.plan(broken=[run.checkpoints[-1].name])
    assert (plan.checkpoint.step, plan.position.step) == (0, 5)
    assert any("checkpoint of step 3 is damaged" in note for note in plan.notes)


def test_a_damaged_checkpoint_behind_the_landing_is_later_history() -> None:
    """Going on over it would give two checkpoints one name."""
    run = Run().steps(3).mark().checkpoint().lose()
    plan = run.plan(broken=[run.checkpoints[-1].name])
    assert (plan.position.step, plan.has_later) == (2, True)


def test_without_a_sound_checkpoint_there_is_nothing_to_recover_from() -> None:
    run = Run().steps(3)
    with pytest.raises(RecoveryError, match=rf"1 is damaged \({run.checkpoints[0].name}\)"):
        run.plan(broken=[run.checkpoints[0].name])
    with pytest.raises(RecoveryError, match="the run has no checkpoint"):
        run.lose_checkpoint().plan()


def test_every_covered_step_can_be_landed_on() -> None:
    run = Run().steps(3).checkpoint().steps(5)
    for step in range(9):
        plan = run.plan(step)
        assert (plan.position.step, plan.has_later) == (step, step < 8)
        assert plan.checkpoint.step == (3 if step >= 3 else 0)


@pytest.mark.parametrize(
    ("run", "step", "message"),
    [
        (Run().steps(4).log(STEP, STEP, BOUNDARY).steps(2), 9, "the nearest is 8"),
        (Run().steps(4).log(STEP, STEP, BOUNDARY).steps(2), 5, "the nearest are 4 and 6"),
        (Run().steps(4).log(STEP, STEP, BOUNDARY).steps(2), 100, "the nearest is 8"),
        (Run().steps(4).checkpoint().steps(2).lose_checkpoint(0), 2, "the oldest checkpoint is of step 4"),
        (Run().steps(3).gap(4).steps(2), 5, "the nearest are 3 and 7"),
        (Run().steps(9).go_back(3).steps(2), 8, "the nearest is 5"),
    ],
)
def test_a_step_that_is_not_covered_is_refused_with_its_neighbours(run: Run, step: int, message: str) -> None:
    with pytest.raises(RecoveryError, match=f"(?s)step {step} is not covered.*{message}"):
        run.plan(step)


def test_of_several_boundaries_of_a_step_the_last_is_the_landing() -> None:
    run = Run().steps(2).log(BOUNDARY, BOUNDARY).mark().steps(1)
    assert run.plan(2).position.sequence == run.marked


def test_images_before_the_landing_belong_to_it_and_later_ones_do_not() -> None:
    plan = Run().log(STEP, IMAGE, BOUNDARY).log(IMAGE, STEP, BOUNDARY).plan(1)
    assert [link.kind for link in plan.links] == [STEP, IMAGE, BOUNDARY]


def test_damage_in_an_entry_ends_the_replay_before_it_unless_a_checkpoint_is_behind_it() -> None:
    run = Run().steps(2).checkpoint().steps(4)
    plan = run.plan(last_good={1: run.places[4][0]})
    assert (plan.checkpoint.step, plan.position.step, plan.has_later) == (2, 4, True)
    assert Run().steps(2).roll().steps(2).checkpoint().steps(2).plan(last_good={1: 1}).position.step == 6


def test_a_lineage_stops_where_a_timeline_is_unknown_and_at_a_cycle() -> None:
    assert trace_lineage([], 3) == {3: None}
    assert trace_lineage([TimelineRow(3, 2, 10)], 3) == {3: None, 2: 10}
    assert trace_lineage([TimelineRow(3, 2, 10), TimelineRow(2, 3, 5)], 3) == {3: None, 2: 10}
    limits = trace_lineage([TimelineRow(1), TimelineRow(2, 1, 10)], 2)
    rows = [CheckpointRow("x", 1, at, "0", timeline, 1, 0.0) for timeline, at in ((1, 10), (1, 11), (2, 99), (3, 1))]
    assert [is_on_lineage(row, limits) for row in rows] == [True, False, True, False]


# Steps without tensors.


@pytest.mark.parametrize(
    ("run", "checkpoint", "redone_to", "end"),
    [
        (Run().cover(5), 0, 0, 5),
        (Run().steps(3).cover(5).steps(2), 0, 3, 10),
        (Run().steps(3).cover(5).checkpoint().steps(2), 8, 10, 10),
        (Run().steps(3).checkpoint().cover(5).log(STEP), 3, 3, 8),
        (Run().steps(3).cover(5).checkpoint().cover(4), 8, 8, 12),
        (Run().cover(5).log(BOUNDARY), 0, 0, 5),
    ],
)
def test_redo_ends_before_the_first_steps_without_tensors(run: Run, checkpoint: int, redone_to: int, end: int) -> None:
    plan = run.plan()
    assert (plan.checkpoint.step, plan.position.step, plan.end.step) == (checkpoint, redone_to, end)
    assert not any(link.covered for link in plan.links)
    assert not plan.links or plan.links[-1].kind.is_boundary
    assert [link.sequence for link in plan.links] == list(range(plan.checkpoint.sequence + 1, plan.position.sequence + 1))
    assert [link.sequence for link in plan.recomputed] == list(range(plan.position.sequence + 1, plan.end.sequence + 1))
    assert plan.has_later == bool(plan.recomputed)
    assert not plan.notes


def test_a_step_without_tensors_is_refused_with_the_step_that_redo_reaches() -> None:
    run = Run().steps(3).cover(5).log(UNIT)
    assert run.plan(3).position.step == 3
    for step in (8, 9):
        with pytest.raises(RecoveryError, match=f"step {step} cannot be redone: .* of steps 4 to {step}.*redo reaches step 3"):
            run.plan(step)
    with pytest.raises(RecoveryError, match="step 5 is not covered"):
        run.plan(5)


@pytest.mark.parametrize("names", [-1, 1])
def test_a_boundary_whose_step_does_not_fit_its_chain_ends_the_log_and_is_named(names: int) -> None:
    run = Run().steps(3).cover(5, names=names).steps(1)
    plan = run.plan()
    assert (plan.position.step, plan.end.step) == (3, 3)
    assert any(f"names step {8 + names}, which cannot follow step 3" in note for note in plan.notes)


def test_only_a_boundary_covers_steps() -> None:
    head = unpack_head(packed_head(1, 1, 9, BOUNDARY, 0, b"", 0, 5))
    assert head is not None
    follows = {(kind, at) for kind in RecordKind for at in range(20) if head._replace(kind=kind).can_follow(at)}
    assert follows == {(BOUNDARY, 4)}
    follows = {(kind, at) for kind in RecordKind for at in range(20) if head._replace(kind=kind, covered=0).can_follow(at)}
    assert follows == {(STEP, 8), (UNIT, 8), (RecordKind.SEGMENT, 9), (IMAGE, 9), (BOUNDARY, 9)}


def test_the_newest_unit_is_not_one_without_tensors() -> None:
    run = Run().steps(3).cover(5).log(BOUNDARY)
    assert find_last_unit(run.history, run.checkpoints, run.plan().end) is None
    assert find_last_unit(run.history, run.checkpoints, run.plan().position) is not None


def test_a_group_redoes_what_a_checkpoint_leads_to_without_steps_of_no_tensors() -> None:
    run = Run().steps(3).cover(5).steps(2).checkpoint().steps(2).cover(1).checkpoint().cover(2)
    runs = without_unlogged_steps(run.history, run.checkpoints).runs
    assert [sorted({link.step for link in run}) for run in runs] == [[1, 2, 3], [11, 12]]


# The line

REPORT = RecoveryReport(step=412, batch=824, epoch=1, checkpoint_step=400, replayed=12, seconds=0.912)
RESTARTED = replace(REPORT, recheck="equal", notes=("best starts over",), restarts=(Restart("remember", "best", "0"),))
CHANGED = replace(REPORT, recheck="equal", notes=("lr was changed between recover() and the first batch",))


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (REPORT, "recovered to step 412 (epoch 2, after 824 batches, checkpoint 400 + 12 replayed, 0.91 s, state bit-exact)"),
        (replace(REPORT, loop=2, batch=24), "(loop 2, epoch 2, after 24 batches, checkpoint 400 + 12 replayed, "),
        (replace(REPORT, batch=1, epoch=0), "(after 1 batch, checkpoint 400 + 12 replayed, "),
        (replace(REPORT, batch=0, epoch=0, exact=None), "(checkpoint 400 + 12 replayed, 0.91 s, not verified)"),
        (replace(REPORT, exact=False, first_divergent_step=2), "0.91 s, NOT exact from step 2)"),
        (replace(REPORT, exact=None, recheck="pending"), "0.91 s, being proven)"),
        (RESTARTED, "0.91 s, state bit-exact)\n  best starts over"),  # a part of the loop starts over
        (CHANGED, "0.91 s, bit-exact)\n  lr was changed"),
        (
            RecoveryReport(checkpoint_step=0, seconds=0.2, is_at_start=True, notes=("so it is",)),
            "starts from the beginning: nothing was recorded before the crash (step 0, 0.20 s)\n  so it is",
        ),
    ],
)
def test_line_of_a_report(report: RecoveryReport, line: str) -> None:
    assert line in str(report)
