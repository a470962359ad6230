"""Mutants of the journal, the owner's lock and suspension."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "the owner's lock is one of the process, which any close of the file drops",
        "tranlogs/journal/owner_lock.py",
        "fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))",
        "fcntl.fcntl(fd, fcntl.F_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))",
        ("tests/journal/test_ownership.py::test_the_other_roles_keep_their_lock_and_notice_its_loss",),
    ),
    Mutant(
        "a step counts as committed before its boundary is in the log",
        "tranlogs/log/writer.py",
        "self.group.add_record(row, after if ends_unit else None)",
        "self.group.add_record(row, after)",
        ("tests/journal/test_journal.py::test_steps_count_once_a_boundary_follows",),
    ),
    Mutant(
        "an incident replaces another one",
        "tranlogs/journal/suspension.py",
        "return known[-1].number + 1 if known else 1",
        "return len(known) + 1",
        ("tests/journal/test_suspension.py::test_an_incident_replaces_no_other_after_a_row_was_lost",),
    ),
    Mutant(
        "the pause before logging is tried again grows without a bound",
        "tranlogs/journal/suspension.py",
        "self.delay = min(self.delay * 2, RETRY_SECONDS_MAX)",
        "self.delay = self.delay * 2",
        ("tests/journal/test_io_errors.py::test_retries_become_rarer_and_go_on_for_ever",),
    ),
    Mutant(
        "a queue of tiny steps has no bound",
        "tranlogs/log/writer_thread.py",
        "if len(self._jobs) >= QUEUE_JOBS_MAX:",
        "if len(self._jobs) < 0:",
        ("tests/journal/test_writer_thread.py::test_a_full_queue_makes_the_training_thread_wait",),
    ),
    Mutant(
        "a request is granted though the run was rewound since",
        "tranlogs/catalog/tables.py",
        "if self.timelines is not None and self.timelines != ",
        "if self.timelines is None and self.timelines != ",
        ("tests/journal/test_requests.py::test_a_change_is_made_by_the_owner_or_by_the_asker",),
    ),
)
