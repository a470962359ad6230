"""Mutants of the Keras integration."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_KERAS = "integrations/tranlogs_keras"
_KILL = "tests/keras/test_kill.py"
_KILLS = f"{_KILL}::test_kills_in_the_middle_of_epochs_leave_no_trace"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "Keras: a resumed pass over the data begins one batch early",
        f"{_KERAS}/data/cursor.py",
        "self.source.open(position.passes, self._taken())",
        "self.source.open(position.passes, max(self._taken() - 1, 0))",
        (f"{_KILL}::test_a_kill_at_any_place_leaves_no_trace[[['batch', 13], ['begin', 1], ['batch', 1]]]",),
    ),
    Mutant(
        "Keras: its global seed generator is not set back",
        f"{_KERAS}/state/rng.py",
        'backend.assign(keras_internals.make_global_seed(), state["keras"])',
        "keras_internals.make_global_seed()",
        (f"{_KILLS}[torch-{{'data': 'generator', 'model': 'global-noise'}}]",),
    ),
    Mutant(
        "Keras: weights that a callback has written are not logged",
        f"{_KERAS}/capture/watched_writes.py",
        "if tensors and not self._journal.is_suspended:",
        "if tensors and self._journal.is_suspended:",
        ("tests/keras/test_callbacks.py::test_what_they_write_and_keep_comes_back[['clamp']-{}]",),
    ),
    Mutant(
        "Keras: the recorded state is not set back behind a unit that differs",
        f"{_KERAS}/run/recovery.py",
        "        self._set_back(recheck.unit)\n",
        "",
        ("tests/keras/test_callbacks.py::test_a_counter_that_sets_the_learning_rate_is_named_and_no_step_is_lost",),
    ),
    Mutant(
        "Keras: other data are not told from those of the run",
        f"{_KERAS}/fit/identity.py",
        '    found += [Change("data", text) for text in other_data(recorded["data"], now["data"])]\n',
        "",
        ("tests/keras/test_fits.py::test_a_script_that_was_changed_is_told_so",),
    ),
    Mutant(
        "Keras: what the script has set is undone with what code before the batches writes",
        f"{_KERAS}/loop/loop_run.py",
        "            self._changes.apply()\n",
        "            pass\n",
        ("tests/keras/test_loops.py::test_what_a_script_sets_stands_from_where_recovery_landed",),
    ),
)
