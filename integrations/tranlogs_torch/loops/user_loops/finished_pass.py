"""Loops that take batches by `next()`: they begin an exhausted loader again, and count by themselves what is left."""

from __future__ import annotations

import dis
import sys
from types import FrameType
from typing import Any

from ...data.position.loader_position import LoaderPosition

COUNTS_BY_ITSELF = (
    "the loop takes its batches with next() and counts them itself, so after a resume it may take more batches than are "
    "left. Let it iterate over optimizer.batches(loader, until=N); for Ignite use tranlogs_torch.trainers.ignite.run_engine"
)


class FinishedPass:
    """An iteration over a loader that had ended before the crash: it gives no batch.

    Args:
        position: in the loader.
        is_leader: True if steps were taken between its batches.
    """

    def __init__(self, position: LoaderPosition, *, is_leader: bool) -> None:
        self._position, self._is_leader = position, is_leader

    def __iter__(self) -> FinishedPass:
        return self

    def __next__(self) -> Any:
        if self._is_leader and is_called_by_next(sys._getframe(1)):
            self._position.doubt(COUNTS_BY_ITSELF)
        raise StopIteration


def is_called_by_next(caller: FrameType) -> bool:
    """Return True if the code of a frame is calling a function now, such as `next`, and not iterating by `for`."""
    return dis.opname[caller.f_code.co_code[caller.f_lasti]].startswith(("CALL", "PRECALL"))
