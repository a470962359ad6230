"""Mutants of many processes, trainers and rehearsals."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="the remainder of a division is logged by no rank",
        path="integrations/tranlogs_torch/ddp/gradient_ranges.py",
        before="low, high = total * rank // world, total * (rank + 1) // world",
        after="low, high = total // world * rank, total // world * (rank + 1)",
        tests=("tests/distributed/test_division.py::test_portions_of_all_ranks_make_every_gradient_whole",),
    ),
    Mutant(
        name="ranks that differ are taken for equal ones",
        path="integrations/tranlogs_torch/ddp/divergence_check.py",
        before="self._differs = len(set(notes.values())) > 1",
        after="self._differs = False",
        tests=("tests/distributed/test_roll_call.py::test_parameters_are_equal_where_all_notes_of_a_step_are",),
    ),
    Mutant(
        name="a rank keeps a copy of its own shares in the place of its neighbour's",
        path="integrations/tranlogs_torch/ddp/gradient_ranges.py",
        before="for portion in portions(named, (rank + i) % world, world)]",
        after="for portion in portions(named, rank, world)]",
        tests=("tests/distributed/test_lost_journals.py::test_a_lost_disk_costs_no_step_with_copies",),
    ),
    Mutant(
        name="a rank keeps the newest checkpoint of the fastest rank, not that of the slowest",
        path="integrations/tranlogs_torch/loops/group_coordinator.py",
        before="journal.holds.set_common_step(min(steps) if",
        after="journal.holds.set_common_step(max(steps) if",
        tests=("tests/distributed/test_kills.py::test_a_rank_that_runs_far_ahead_keeps_what_all_go_back_to",),
    ),
    Mutant(
        name="a rank lets go of its checkpoint before all ranks have the next one",
        path="integrations/tranlogs_torch/loops/group_coordinator.py",
        before='journal.holds.set_common_step(min(one["has"] for one in answers), self.world)',
        after="journal.holds.set_common_step(journal.step, self.world)",
        tests=(
            "tests/distributed/test_sharded.py::test_a_death_between_a_checkpoint_of_one_rank_and_that_of_another_loses_no_step",
        ),
    ),
    Mutant(
        name="a group resumes at the oldest boundary that all reach",
        path="tranlogs/recovery/group/decide.py",
        before="for target in sorted(common if step is None else common & {step}, reverse=True):",
        after="for target in sorted(common if step is None else common & {step}):",
        tests=("tests/distributed/test_kills.py::test_each_kind_of_group_loses_no_finished_step[2-fsdp-]",),
    ),
    Mutant(
        name="of what ranks have recorded without tensors, the longest counts",
        path="tranlogs/recovery/group/plan.py",
        before="_cut(recorded, count), summary.covered[count - 1]",
        after="_cut(recorded, len(summary.covered)), summary.covered[-1]",
        tests=("tests/distributed/test_rungs.py::test_a_boundary_that_one_rank_has_not_recorded_counts_for_none",),
    ),
    Mutant(
        name="ranks log tensors again without a checkpoint of all",
        path="tranlogs/training/rungs.py",
        before="(next_phase if is_checkpoint else None) or planned",
        after="next_phase or planned",
        tests=("tests/torch/inputs/test_rungs.py::test_ranks_follow_what_the_first_one_measures",),
    ),
    Mutant(
        name="the position of a trainer's loader is that behind the batch that was fetched ahead",
        path="integrations/tranlogs_torch/trainers/trainer_position.py",
        before="return self._here() if found is None else found",
        after="return self._here()",
        tests=("tests/trainers/test_trainers.py::test_a_loop_of_accelerate_comes_back_from_kills",),
    ),
    Mutant(
        name="a rehearsal does not compare the numbers in printed lines",
        path="tranlogs/rehearsal/compare_output.py",
        before="        if x != y:\n",
        after="        if x[0] != y[0]:\n",
        tests=("tests/rehearsal/test_comparison.py::test_first_line_that_differs_is_found",),
    ),
)
