"""Mutants of what kills and power cuts find."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

EVERY_SYNC = ("tests/crash/test_every_sync.py::test_synced_steps_survive_a_power_cut_at_every_sync",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "segments are not synced before their records count as synced",
        "tranlogs/log/segment_file.py",
        'hit("log.sync")\n        os.fdatasync(self._fd)',
        'hit("log.sync")',
        EVERY_SYNC,
    ),
    Mutant(
        "the folder of checkpoints is not synced after the rename",
        "tranlogs/checkpoints/writer.py",
        "        sync_folder(folder)\n        hit(",
        "        hit(",
        EVERY_SYNC,
    ),
    Mutant(
        "the tensors of a checkpoint are not synced before its rename",
        "tranlogs/checkpoints/writer.py",
        "        if is_synced:\n            os.fsync(fd)\n    finally:",
        "    finally:",
        EVERY_SYNC,
    ),
    Mutant(
        "a segment's row says that the file was cut before that is on the disk",
        "tranlogs/log/segment_file.py",
        "            if sync:\n                os.fsync(self._fd)\n",
        "",
        EVERY_SYNC,
    ),
    Mutant(
        "the head of a record is written before the rest of it",
        "tranlogs/log/writer.py",
        'hit("log.before_commit")\n        segment.write_head(packed, offset)  # commit point for a killed process',
        "segment.write_head(packed, offset)\n        segment.write([bytes(end - start)], start)\n"
        '        hit("log.before_commit")\n        segment.write(rest, start)',
        ("tests/crash/test_kill_core.py::test_a_kill_at_a_fault_point_loses_nothing_committed",),
    ),
    Mutant(
        "a checkpoint whose newest one was retired a moment ago counts as deleted",
        "tranlogs/journal/checkpointing.py",
        "not self._is_at_place(name) and name == self._newest:",
        "not self._is_at_place(name):",
        ("tests/crash/test_two_writers.py::test_checkpoint_that_is_retired_while_it_is_looked_for_was_not_deleted",),
    ),
    Mutant(
        "a forked child keeps the lock of its trainer",
        "tranlogs/journal/owner_lock.py",
        "os.register_at_fork(after_in_child=_close_in_child)",
        "",
        ("tests/crash/test_two_writers.py::test_a_child_that_outlives_the_trainer_does_not_keep_the_run",),
    ),
    Mutant(
        "the owner does not lock the folder, only a file that can be deleted",
        "tranlogs/journal/owner_lock.py",
        'if self._role != "owner" or _lock_folder(folder_fd, fcntl.LOCK_EX) else -1',
        "if True else -1",
        ("tests/crash/test_two_writers.py::test_a_trainer_keeps_its_run_although_the_files_of_its_locks_are_deleted",),
    ),
)
