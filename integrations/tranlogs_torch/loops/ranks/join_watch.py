"""Ranks that run out of data before others, in `join` of DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tranlogs.base.errors import UsageError
from tranlogs.training import Journal

from ...ddp.reducer import Reducer


class JoinWatch:
    """Notices when this rank runs out of data, and refuses uses of `join` after which no common step could be found.

    Args:
        reducers: reducers of the model.

    Attributes:
        has_left: True if this rank has run out of data or has closed the run.
        came_back: True if this rank had run out of data before the step at which the others ended recovery.
    """

    def __init__(self, reducers: Sequence[Reducer]) -> None:
        self._reducers = reducers
        self.has_left = self.came_back = False
        self._on_leaving: Callable[[], None] | None = None
        self._joining: list[object] = []  # the `join` in which ranks run out of data one by one

    def start(self, on_leaving: Callable[[], None]) -> None:
        """Call `on_leaving` when this rank has run out of data in a `join` and others have not."""
        self._on_leaving = on_leaving
        for reducer in self._reducers:
            reducer.watch_join(self)

    def leave_join(self) -> None:
        """Report that this rank has no data left and others have."""
        if self._on_leaving is not None and not self.has_left:
            self._on_leaving()

    def note_boundary(self, journal: Journal, *, is_sharded: bool) -> None:
        """Within a `join`, keep all log files: ranks that have run out of data stay at an earlier step than the others.

        Raises:
            UsageError: a second `join` was entered, so that equal step numbers mean different places; or each rank
                steps parameters that the others wait for.
        """
        joining = [reducer.pass_of_join for reducer in self._reducers if reducer.is_joining]
        if not joining:
            return
        if is_sharded:
            raise UsageError(
                "join() with a ZeroRedundancyOptimizer is not logged. Give all ranks the same number of batches "
                "(DistributedSampler does)"
            )
        if not self._joining:
            self._joining = joining
            journal.holds.hold_until_next_process()
        elif any(now is not then for now, then in zip(joining, self._joining, strict=True)):
            raise UsageError(
                "join() was entered a second time. Ranks have taken different numbers of steps since the first, so a crash "
                "would leave them no common step. Take all epochs within one join(), or give all ranks the same number of "
                "batches (DistributedSampler does)"
            )
