"""The clock. Functions get it as an argument, so that tests can set the time."""

from __future__ import annotations

import time


class Clock:
    """The clocks of the machine: `now` returns seconds since the epoch, `monotonic` seconds of a clock that never jumps."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()
