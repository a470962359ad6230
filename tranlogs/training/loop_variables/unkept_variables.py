"""Naming of the variables that start over, once after a resume."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..live_report import LiveReport
from .carried_variables import Facts, LoopVariables
from .descriptions import describe_unkept
from .objects.library_objects import LibraryObject

_LOOKS_MAX = 3  # boundaries at which variables of the running loops are looked for


class UnkeptVariables:
    """Names the variables of the running loops that the run does not keep, in a note of the report.

    A fresh run is not warned: the variables do not start over there.

    Args:
        report: of the recovery.
        is_value: see `LoopVariables`.
        is_kept: see there.
        find_others: see there.
    """

    def __init__(
        self,
        report: LiveReport,
        is_value: Facts,
        is_kept: Facts,
        find_others: Callable[[], Sequence[LibraryObject]] = lambda: (),
    ) -> None:
        self._report, self._variables = report, LoopVariables(is_value, is_kept, find_others)
        self._looks = 0  # that are left

    def note_start(self) -> None:
        """Leave out the loops in whose body the run is recovered."""
        self._variables.note_start()

    def watch(self) -> None:
        """Look for them at the next boundaries: training goes on after a crash."""
        self._looks = _LOOKS_MAX

    def name(self) -> None:
        """Add a note at a boundary, once, if there are any. It waits for the unit that is computed again."""
        if not self._looks or self._report.recheck == "pending":
            return
        found = self._variables.find()
        self._looks = 0 if found else self._looks - 1  # at the end of an epoch its inner loop is not running
        if found:
            self._report.note(describe_unkept(found))
