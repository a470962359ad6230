"""Mutants of the PyTorch integration."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LOOPS: tuple[Mutant, ...] = (
    Mutant(
        "an iteration that was begun before a loop begins anew where a resume asks for its first batch",
        "integrations/tranlogs_torch/data/position/loader_position.py",
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
        "a learning rate that the script sets after recover() is lost with the unit that is not computed again",
        "integrations/tranlogs_torch/loops/recovery/script_changes.py",
        "            state.optimizers[which].param_groups[i][key] = value\n",
        "            state.optimizers[which].param_groups[i].setdefault(key, value)\n",
        (
            "tests/torch/loops/test_script_changes.py::test_a_value_that_the_unit_changes_too_is_the_scripts_and_no_step_is_lost",
        ),
    ),
    Mutant(
        "a run takes another class of optimizer for its own",
        "integrations/tranlogs_torch/state/compatibility.py",
        '    if recorded["class"] != now:\n',
        "    if not now:\n",
        ("tests/torch/loops/test_recovery.py::test_model_that_does_not_fit_is_refused_before_anything_is_touched",),
    ),
)

MUTANTS: tuple[Mutant, ...] = (*LOOPS,)
