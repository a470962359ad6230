"""Which boundaries are recorded where no tensors are logged (`log="inputs"`), so that the log costs next to nothing.

A boundary is recorded after a step once 50 ms have passed since the last one, or 200 times what recording one takes. It tells a
recovery, which computes the steps again, where to compare, and costs at most a two hundredth of the time.
"""

from __future__ import annotations

import time
from collections import deque

from ..log.record_format import COVERED_MAX
from .rehearsed_process import current

_SECONDS = 0.05
_SHARE = 0.005  # of the time, for recording boundaries
_MEASURED = 16  # The fastest counts: others may have been disturbed, or took a checkpoint.
_KNOWN = 4  # boundaries from which on their time counts: the first ones of a process take longer
_STEPS_MAX = COVERED_MAX // 2  # The last unit may have many steps.


class Cadence:
    """Decides which boundaries are recorded: each one in a rehearsal, which compares them."""

    def __init__(self) -> None:
        self._is_rehearsed = current() is not None
        self._next_at = 0.0
        self._seconds: deque[float] = deque(maxlen=_MEASURED)

    def is_due(self, uncovered: int) -> bool:
        """Return True if the boundary that comes now is recorded, which covers a number of steps."""
        is_due = self._is_rehearsed or time.perf_counter() >= self._next_at or uncovered >= _STEPS_MAX
        return bool(uncovered) and is_due

    def demand(self) -> None:
        """Let the next boundary after a step be recorded: a loop ends."""
        self._next_at = 0.0

    def note(self, began: float) -> None:
        """Note that a boundary was recorded, which began at a time of `time.perf_counter`."""
        now = time.perf_counter()
        self._seconds.append(now - began)
        known = min(self._seconds) if len(self._seconds) >= _KNOWN else 0.0
        self._next_at = now + max(_SECONDS, known / _SHARE)
