"""Mutants of the PyTorch integration."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CAPTURE: tuple[Mutant, ...] = (
    Mutant(
        "the bytes of weights are not compared for writes that leave no trace",
        "integrations/tranlogs_torch/capture/foreign_writes.py",
        "if digests.tobytes() != known.tobytes():",
        "if False:",
        ("tests/torch/capture/test_foreign_writes.py::test_write_is_noticed_in_every_way_of_logging",),
    ),
    Mutant(
        "the fingerprint of a redone step is not compared after the first step",
        "tranlogs/training/redo.py",
        "if entry.digests and divergence is None:",
        "if entry.digests and done == 1:",
        ("tests/training/test_redo.py::test_records_are_applied_by_kind_and_compared",),
    ),
    Mutant(
        "a draw from torch's generator is not noticed",
        "integrations/tranlogs_torch/data/rng.py",
        "has_drawn or own != self._torch or torch",
        "has_drawn or torch",
        ("tests/torch/data/test_positions.py::test_each_draw_is_noticed_and_nothing_else",),
    ),
    Mutant(
        "a sparse momentum is digested like a dense one",
        "integrations/tranlogs_torch/loops/landed_state.py",
        "isinstance(value, torch.Tensor) and value.layout is torch.strided:",
        "isinstance(value, torch.Tensor):",
        ("tests/torch/replay/test_exact_matrix.py::test_other_scripts_come_back_to_the_bit[sparse momentum]",),
    ),
    Mutant(
        "a hyper-parameter that is written in place is not copied again",
        "integrations/tranlogs_torch/state/group_values.py",
        "if self._is_immutable and sizes == self._sizes and (all(",
        "if sizes == self._sizes and (all(",
        ("tests/torch/state/test_parts.py::test_hyper_parameters_that_were_written_are_in_the_next_copy",),
    ),
    Mutant(
        "a device buffer is filled again before its transfer",
        "integrations/tranlogs_torch/capture/staging_plan.py",
        "training.wait_event(buffer.read)",
        "pass",
        ("tests/torch/device/test_staging.py::test_a_buffer_is_overwritten_only_after_its_transfers",),
    ),
    Mutant(
        "pinned memory is given out that a payload still holds",
        "integrations/tranlogs_torch/device/staging_ring.py",
        "if self.used_bytes + size > self.capacity:",
        "if self.used_bytes >= self.capacity:",
        (
            "tests/torch/device/test_parts_of_staging.py::test_regions_that_are_held_never_overlap_and_what_was_released_is_used_again",
        ),
    ),
    Mutant(
        "a file that does not read back is published",
        "integrations/tranlogs_torch/tensors/equality.py",
        "if differing:",
        "if False:",
        ("tests/torch/offline/test_offline.py::test_a_full_disk_and_what_does_not_read_back_leave_nothing",),
    ),
    Mutant(
        "a unit that is computed again is compared with the record of another optimizer",
        "tranlogs/training/recheck.py",
        "if one.entry.layout.names == names), expected)",
        "), expected)",
        ("tests/torch/test_optimizer.py::test_clipping_crosswise_comes_back_to_the_bit",),
    ),
)
LOOPS: tuple[Mutant, ...] = (
    Mutant(
        "an iteration that was begun before a loop begins anew where a resume asks for its first batch",
        "integrations/tranlogs_torch/data/loader_position.py",
        "return self.is_in_pass and not self.iteration.batch and self.iteration.opened is not None",
        "return False",
        ("tests/torch/loops/test_loops.py::test_a_killed_loop_comes_back_to_the_bit[second source]",),
    ),
    Mutant(
        "a loop that is over is entered again after a crash behind it",
        "tranlogs/training/loop_sequence.py",
        'return "running" if number == recorded.count and recorded.is_open else "finished"',
        'return "running" if recorded.is_open else "finished"',
        ("tests/training/test_loop_sequence.py::test_decisions",),
    ),
    Mutant(
        "a learning rate that the script sets after recover() is not looked at when the loop opens",
        "integrations/tranlogs_torch/loops/recovery.py",
        "show(tensors + hyper + landed.find_other_changes(",
        "show(tensors + landed.find_other_changes(",
        ("tests/torch/loops/test_script_changes.py::test_it_stands_and_the_newest_unit_is_trained_again_with_it",),
    ),
    Mutant(
        "what the script sets after recover() supersedes a unit at each start",
        "integrations/tranlogs_torch/loops/recovery.py",
        "parts.auxiliary.has_script_changes = None, True",
        "parts.auxiliary.has_script_changes = None, False",
        ("tests/torch/loops/test_script_changes.py::test_a_script_that_changes_something_anew_at_each_start_makes_progress",),
    ),
    Mutant(
        "the proof does not look at the arrays of a boundary",
        "tranlogs/training/comparison.py",
        "    return all(np.array_equal(a.data, b.data) for a, b in zip(ours.arrays, arrays, strict=True))\n",
        "    return True\n",
        ("tests/torch/loops/test_recheck.py::test_an_array_that_alone_comes_out_otherwise_is_named",),
    ),
    Mutant(
        "a run takes another class of optimizer for its own",
        "integrations/tranlogs_torch/state/compatibility.py",
        '    if recorded["class"] != now:\n',
        "    if not now:\n",
        ("tests/torch/loops/test_recovery.py::test_model_that_does_not_fit_is_refused_before_anything_is_touched",),
    ),
)

MUTANTS: tuple[Mutant, ...] = (*LOOPS, *CAPTURE)
