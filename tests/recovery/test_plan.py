"""Where recovery starts and lands: tables over histories, timelines, holes and damage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tranlogs.base.errors import RecoveryError
from tranlogs.catalog import CheckpointRow, SegmentRow, TimelineRow
from tranlogs.catalog.lineage import is_on_lineage, trace_lineage
from tranlogs.log.record_format import EntryKind, Head, Location, digest, pack_head, unpack_head
from tranlogs.recovery.history import History, ScannedSegment, build_history, find_last_unit, without_unlogged_steps
from tranlogs.recovery.recovery_plan import RecoveryPlan, plan_recovery

STEP, IMAGE, BOUNDARY, UNIT = EntryKind.STEP, EntryKind.IMAGE, EntryKind.BOUNDARY, EntryKind.UNIT


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
    places: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # step -> sequence, step, chain at its last boundary

    def __post_init__(self) -> None:
        self.roll()
        self.checkpoint()

    def roll(self) -> None:
        """A new segment."""
        ordinal = len(self.segments) + 1
        row = SegmentRow(ordinal, f"{ordinal:016x}", f"{ordinal}.seg", 0, "sealed", self.timeline, self.sequence, self.step)
        self.segments.append(ScannedSegment(row, Path(row.file), []))
        self._place(EntryKind.SEGMENT, self.sequence, self.chain)

    def _place(self, kind: EntryKind, sequence: int, chain: int, covered: int = 0) -> Head:
        segment = self.segments[-1]
        head = unpack_head(pack_head(segment.row.ordinal, sequence, self.step, kind, 0, b"", chain, covered))
        assert head is not None
        assert isinstance(segment.locations, list)
        segment.locations.append(Location(head, 0))
        return head

    def log(self, *kinds: EntryKind) -> Run:
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

    def lose(self, *sequences: int) -> Run:
        """Entries that cannot be found any more."""
        for segment in self.segments:
            assert isinstance(segment.locations, list)
            segment.locations[:] = [at for at in segment.locations if at.head.sequence not in sequences or at.head.kind == 1]
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
        return plan_recovery(
            self.checkpoints,
            self.history,
            self.limits,
            timeline=self.timelines[-1].number,
            step=step,
            broken=broken,
            last_good=last_good,
        )


def redone(plan: RecoveryPlan) -> list[int]:
    return [link.step for link in plan.links if link.kind.is_step]


def test_the_newest_boundary_is_the_landing() -> None:
    run = Run().steps(5)
    plan = run.plan()
    assert (plan.checkpoint.step, redone(plan), plan.position.step, plan.has_later) == (0, [1, 2, 3, 4, 5], 5, False)
    assert (plan.position.sequence, plan.position.chain) == (run.sequence, run.chain)


@pytest.mark.parametrize(
    "tail", [(STEP,), (STEP, IMAGE), (IMAGE,), (STEP, STEP, IMAGE)], ids=lambda tail: "".join(kind.name[0] for kind in tail)
)
def test_what_no_boundary_follows_was_not_committed(tail: tuple[EntryKind, ...]) -> None:
    plan = Run().steps(3).log(*tail).plan()
    assert (plan.position.step, plan.links[-1].kind, plan.has_later) == (3, UNIT, False)


def test_the_newest_of_the_checkpoints_that_reach_as_far_is_the_start() -> None:
    run = Run().steps(3).checkpoint().steps(3).checkpoint().steps(2)
    plan = run.plan()
    assert (plan.checkpoint.step, redone(plan), plan.position.step) == (6, [7, 8], 8)


def test_a_checkpoint_at_the_landing_needs_no_replay() -> None:
    plan = Run().steps(4).checkpoint().plan()
    assert (plan.checkpoint.step, list(plan.links), plan.position.step) == (4, [], 4)


def test_a_checkpoint_counts_though_its_boundary_is_lost() -> None:
    run = Run().steps(4)
    lost = run.sequence
    run.checkpoint().lose(lost)
    plan = run.plan()
    assert (plan.checkpoint.step, plan.position.sequence, plan.has_later) == (4, lost, False)


def test_a_damaged_checkpoint_is_passed_over_and_named() -> None:
    run = Run().steps(3).checkpoint().steps(2)
    plan = run.plan(broken=[run.checkpoints[-1].name])
    assert (plan.checkpoint.step, redone(plan)) == (0, [1, 2, 3, 4, 5])
    assert any("checkpoint of step 3 is damaged" in note for note in plan.notes)


def test_a_damaged_checkpoint_behind_the_landing_is_later_history() -> None:
    """Going on over it would give two checkpoints one name."""
    run = Run().steps(3)
    boundary = run.sequence
    run.checkpoint().lose(boundary)
    plan = run.plan(broken=[run.checkpoints[-1].name])
    assert (plan.position.step, plan.has_later) == (2, True)


def test_without_a_checkpoint_there_is_nothing_to_recover_from() -> None:
    run = Run().steps(3)
    run.checkpoints.clear()
    with pytest.raises(RecoveryError, match="the run has no checkpoint"):
        run.plan()


def test_without_a_sound_checkpoint_the_damaged_ones_are_named() -> None:
    run = Run().steps(3)
    with pytest.raises(RecoveryError, match=rf"1 is damaged \({run.checkpoints[0].name}\)"):
        run.plan(broken=[run.checkpoints[0].name])


@pytest.mark.parametrize("step", [0, 1, 3, 4, 6, 8])
def test_every_covered_step_can_be_landed_on(step: int) -> None:
    run = Run().steps(3).checkpoint().steps(5)
    plan = run.plan(step)
    assert (plan.position.step, plan.has_later) == (step, step < 8)
    assert plan.checkpoint.step == (3 if step >= 3 else 0)


@pytest.mark.parametrize(("step", "message"), [(9, "is 8"), (5, "are 4 and 6"), (100, "is 8")])
def test_a_step_without_a_boundary_is_refused_with_its_neighbours(step: int, message: str) -> None:
    run = Run().steps(4).log(STEP, STEP, BOUNDARY).steps(2)
    with pytest.raises(RecoveryError, match=f"step {step} is not covered.*{message}"):
        run.plan(step)


def test_a_step_before_the_oldest_checkpoint_is_refused() -> None:
    run = Run().steps(4).checkpoint().steps(2)
    run.checkpoints.pop(0)
    with pytest.raises(RecoveryError, match="the oldest checkpoint is of step 4"):
        run.plan(2)


def test_of_several_boundaries_of_a_step_the_last_is_the_landing() -> None:
    run = Run().steps(2).log(BOUNDARY, BOUNDARY)
    last = run.sequence
    run.steps(1)
    assert run.plan(2).position.sequence == last


def test_images_before_the_landing_belong_to_it_and_later_ones_do_not() -> None:
    run = Run().log(STEP, IMAGE, BOUNDARY).log(IMAGE, STEP, BOUNDARY)
    plan = run.plan(1)
    assert [link.kind for link in plan.links] == [STEP, IMAGE, BOUNDARY]


def test_a_hole_ends_the_replay_and_is_named() -> None:
    run = Run().steps(3)
    lost = run.sequence + 1
    run.steps(3).lose(lost)
    plan = run.plan()
    assert (plan.position.step, plan.has_later) == (3, True)
    assert any("damaged or missing" in note and "after step 3" in note for note in plan.notes)


def test_a_checkpoint_behind_a_hole_bridges_it() -> None:
    run = Run().steps(3)
    lost = run.sequence + 1
    run.steps(2).checkpoint().steps(2).lose(lost)
    plan = run.plan()
    assert (plan.checkpoint.step, plan.position.step, plan.has_later) == (5, 7, False)


def test_damage_in_an_entry_ends_the_replay_before_it() -> None:
    run = Run().steps(2).checkpoint().steps(4)
    plan = run.plan(last_good={1: run.places[4][0]})
    assert (plan.checkpoint.step, plan.position.step, plan.has_later) == (2, 4, True)


def test_damage_before_the_checkpoint_does_not_matter() -> None:
    run = Run().steps(2)
    run.roll()
    run.steps(2).checkpoint().steps(2)
    assert run.plan(last_good={1: 1}).position.step == 6


# Steps without tensors.


@pytest.mark.parametrize(
    ("run", "checkpoint", "redone_to", "end"),
    [
        (Run().cover(5), 0, 0, 5),
        (Run().cover(5, 1, 7), 0, 0, 13),
        (Run().steps(3).cover(5).steps(2), 0, 3, 10),
        (Run().steps(3).cover(5).checkpoint().steps(2), 8, 10, 10),
        (Run().steps(3).checkpoint().cover(5).log(STEP), 3, 3, 8),
        (Run().steps(3).cover(5).checkpoint().cover(4), 8, 8, 12),
        (Run().steps(2).log(STEP, IMAGE).cover(5), 0, 2, 8),
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
    head = unpack_head(pack_head(1, 1, 9, BOUNDARY, 0, b"", 0, 5))
    assert head is not None
    follows = {(kind, at) for kind in EntryKind for at in range(20) if head._replace(kind=kind).can_follow(at)}
    assert follows == {(BOUNDARY, 4)}
    follows = {(kind, at) for kind in EntryKind for at in range(20) if head._replace(kind=kind, covered=0).can_follow(at)}
    assert follows == {(STEP, 8), (UNIT, 8), (EntryKind.SEGMENT, 9), (IMAGE, 9), (BOUNDARY, 9)}


def test_the_newest_unit_is_not_one_without_tensors() -> None:
    run = Run().steps(3).cover(5).log(BOUNDARY)
    assert find_last_unit(run.history, run.checkpoints, run.plan().end) is None
    assert find_last_unit(run.history, run.checkpoints, run.plan().position) is not None


def test_a_group_redoes_what_a_checkpoint_leads_to_without_steps_of_no_tensors() -> None:
    run = Run().steps(3).cover(5).steps(2).checkpoint().steps(2).cover(1).checkpoint().cover(2)
    runs = without_unlogged_steps(run.history, run.checkpoints).runs
    assert [sorted({link.step for link in run}) for run in runs] == [[1, 2, 3], [11, 12]]


def test_a_lost_segment_is_a_hole_between_files() -> None:
    run = Run().steps(2)
    run.roll()
    run.steps(2)
    run.roll()
    run.steps(2)
    del run.segments[1]
    plan = run.plan()
    assert plan.position.step == 2
    assert any("between 1.seg and 3.seg: steps 3 to 4" in note for note in plan.notes)


def test_a_segment_whose_first_entries_are_lost_does_not_join() -> None:
    run = Run().steps(2)
    run.roll()
    first = run.sequence + 1
    run.steps(3)
    assert isinstance(run.segments[1].locations, list)
    del run.segments[1].locations[0]
    run.lose(first)
    assert run.plan().position.step == 2


def test_what_a_dead_process_had_not_committed_is_superseded() -> None:
    run = Run().steps(3).log(STEP, IMAGE)
    run.restart(3).steps(2)
    plan = run.plan()
    assert (redone(plan), plan.position.step, plan.has_later) == ([1, 2, 3, 4, 5], 5, False)
    assert {link.segment.row.ordinal for link in plan.links if link.step > 3} == {2}


def test_restarts_that_logged_nothing_leave_no_trace() -> None:
    run = Run().steps(3).restart().restart().log(STEP).restart(3).steps(1)
    assert redone(run.plan()) == [1, 2, 3, 4]


def test_a_gap_is_bridged_by_its_checkpoint() -> None:
    run = Run().steps(3).gap(4).steps(2)
    plan = run.plan()
    assert (plan.checkpoint.step, redone(plan), plan.position.step) == (7, [8, 9], 9)


def test_a_gap_whose_checkpoint_was_not_published_goes_back_before_it() -> None:
    run = Run().steps(3).gap(4)
    run.checkpoints.pop()
    plan = run.plan()
    assert (plan.position.step, plan.has_later) == (3, False)
    run.restart(3).steps(1)
    assert redone(run.plan()) == [1, 2, 3, 4]


def test_gaps_in_a_row_are_bridged_by_the_last_checkpoint() -> None:
    run = Run().steps(1).gap(2).gap(3).steps(1)
    assert (run.plan().checkpoint.step, run.plan().position.step) == (6, 7)
    run.checkpoints.pop(-2)
    assert run.plan().position.step == 7
    run.checkpoints.pop()
    assert run.plan().position.step == 1


def test_a_step_inside_a_gap_is_not_covered() -> None:
    run = Run().steps(3).gap(4).steps(2)
    with pytest.raises(RecoveryError, match=r"not covered.*the nearest are 3 and 7"):
        run.plan(5)


# Timelines.


def test_after_a_rewind_the_new_timeline_is_followed() -> None:
    run = Run().steps(6).go_back(3).steps(2)
    plan = run.plan()
    assert (plan.position.step, plan.position.timeline, plan.has_later) == (5, 2, False)
    assert [link.segment.row.timeline for link in plan.links if link.kind.is_step] == [1, 1, 1, 2, 2]
    assert (plan.position.sequence, plan.position.chain) == (run.sequence, run.chain)


def test_a_rewind_before_its_first_entry_lands_at_the_fork() -> None:
    run = Run().steps(6).go_back(3)
    plan = run.plan()
    assert (plan.position.step, plan.position.timeline, plan.has_later) == (3, 2, False)


def test_checkpoints_behind_the_fork_are_not_used() -> None:
    run = Run().steps(2).checkpoint().steps(4).checkpoint().go_back(3).steps(1)
    plan = run.plan()
    assert (plan.checkpoint.step, plan.position.step) == (2, 4)


def test_a_checkpoint_at_the_fork_is_used() -> None:
    run = Run().steps(3).checkpoint().steps(3).go_back(3).steps(1)
    assert (run.plan().checkpoint.step, redone(run.plan())) == (3, [4])


def test_rewinding_again_before_the_first_fork_cuts_both() -> None:
    run = Run().steps(6).go_back(4).steps(3).go_back(2).steps(2)
    plan = run.plan()
    assert run.limits == {3: None, 2: run.places[2][0], 1: run.places[2][0]}
    assert [(link.step, link.segment.row.timeline) for link in plan.links if link.kind.is_step] == [
        (1, 1),
        (2, 1),
        (3, 3),
        (4, 3),
    ]


def test_rewinding_again_behind_the_first_fork_keeps_both() -> None:
    run = Run().steps(6).go_back(3).steps(4).go_back(5).steps(2)
    plan = run.plan()
    steps = [(link.step, link.segment.row.timeline) for link in plan.links if link.kind.is_step]
    assert steps == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 3), (7, 3)]
    assert not plan.has_later


def test_rewinding_on_a_rewound_timeline_sees_only_its_own_steps() -> None:
    run = Run().steps(9).go_back(3).steps(2)
    with pytest.raises(RecoveryError, match=r"not covered.*the nearest is 5"):
        run.plan(8)


def test_a_crash_on_the_new_timeline_goes_on_there() -> None:
    run = Run().steps(6).go_back(3).steps(2).log(STEP).restart(5).steps(2)
    plan = run.plan()
    assert (redone(plan), plan.position.timeline) == ([1, 2, 3, 4, 5, 6, 7], 2)


def test_a_rewind_over_segments_uses_the_part_before_the_fork() -> None:
    run = Run()
    for _ in range(4):
        run.steps(2)
        run.roll()
    run.go_back(3).steps(1)
    run.roll()
    run.steps(1)
    assert redone(run.plan()) == [1, 2, 3, 4, 5]


def test_damage_after_a_fork_leaves_the_parent_alone() -> None:
    run = Run().steps(4).go_back(2).steps(3)
    first_of_fork = run.places[2][0] + 1
    for segment in run.segments[1:]:
        assert isinstance(segment.locations, list)
        segment.locations[:] = [at for at in segment.locations if at.head.sequence != first_of_fork]
    plan = run.plan()
    assert (plan.position.step, plan.has_later) == (2, True)


def test_a_lineage_stops_where_a_timeline_is_unknown_and_at_a_cycle() -> None:
    assert trace_lineage([], 3) == {3: None}
    assert trace_lineage([TimelineRow(3, 2, 10)], 3) == {3: None, 2: 10}
    assert trace_lineage([TimelineRow(3, 2, 10), TimelineRow(2, 3, 5)], 3) == {3: None, 2: 10}


def test_a_checkpoint_is_on_a_lineage_up_to_the_fork() -> None:
    limits = trace_lineage([TimelineRow(1), TimelineRow(2, 1, 10)], 2)
    rows = [
        CheckpointRow("x", 1, sequence, "0", timeline, 1, 0.0) for timeline, sequence in ((1, 10), (1, 11), (2, 99), (3, 1))
    ]
    assert [is_on_lineage(row, limits) for row in rows] == [True, False, True, False]


def test_the_digest_of_a_head_is_what_the_next_names() -> None:
    run = Run().steps(1)
    locations = run.segments[0].locations
    assert locations[2].head.chain == locations[1].head.digest
    assert locations[1].head.digest == digest(pack_head(1, 1, 1, STEP, 0, b"", 0))
