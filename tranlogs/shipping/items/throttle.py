"""Limits that all sending threads share: their number, and the bandwidth."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_BURST_SECONDS = 0.25
_PORTION_BYTES_MIN, _PORTION_BYTES_MAX = 64 << 10, 4 << 20


class Throttle:
    """Limits on the number of threads that send at once, and on their bandwidth.

    Args:
        bytes_per_second: bandwidth of all threads together; None for no limit.
        senders: number of threads that may send at once.

    Attributes:
        senders: number of threads that may send at once.
        chunk_bytes: number of bytes that should be taken at once at most, so that each wait is short.
    """

    def __init__(self, bytes_per_second: float | None = None, senders: int = 2) -> None:
        self._rate, self.senders = bytes_per_second, senders
        self._slots = threading.BoundedSemaphore(senders)
        wanted = _PORTION_BYTES_MAX if bytes_per_second is None else int(bytes_per_second * _BURST_SECONDS)
        self.chunk_bytes = min(max(wanted, _PORTION_BYTES_MIN), _PORTION_BYTES_MAX)
        self._lock = threading.Lock()
        self._free_at = 0.0

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Wait until this thread may send, and count it as a sender during the block."""
        with self._slots:
            yield

    def take(self, nbytes: int) -> None:
        """Wait until `nbytes` may be sent."""
        if self._rate is None:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - _BURST_SECONDS) + nbytes / self._rate
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)
