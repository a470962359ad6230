"""Waiting for something that another process or thread brings about."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

SECONDS_MAX = 60.0


def wait_until(is_so: Callable[[], object], what: str) -> None:
    """Wait until `is_so` returns something true; fail, and name `what`, if it does not within a minute."""
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline, f"{what}: not in {SECONDS_MAX} s"
        signal.sigtimedwait([], 0.02)
