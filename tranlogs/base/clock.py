"""Clocks. Functions get the clock as an argument, so that tests can set the time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time: `now` returns seconds since the epoch, `monotonic` seconds of a clock that never jumps."""

    def now(self) -> float: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The clocks of the machine."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()
