"""Limits that all senders share: how many send at once, and how many bytes a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_BURST_SECONDS = 0.25
_PORTION_BYTES_MIN, _PORTION_BYTES_MAX = 64 << 10, 4 << 20


class Throttle:
    """A limit of senders and of bandwidth.

    Args:
        bytes_per_second: bandwidth of all senders together; None for no limit.
        senders: how many may send at once.

    Attributes:
        senders: as given.
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
        """Wait for one of the sender's slots, and hold it for the block."""
        with self._slots:
            yield

    def take(self, nbytes: int) -> None:
        """Wait until that many bytes may be sent."""
        if self._rate is None:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - _BURST_SECONDS) + nbytes / self._rate
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)
