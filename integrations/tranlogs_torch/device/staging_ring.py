"""A ring of bytes: space given out in order, and taken back in any order.

Regions lie one after the other, from the oldest that is still held to the newest. A region that is released while an older
one is held becomes free together with that older one. A region that reaches the end of the ring goes on at its beginning, so
the ring never loses space to fragments: any region fits as soon as enough bytes are free.
"""

from __future__ import annotations

import time
from collections import deque

from tranlogs.base.errors import LogUnavailable
from tranlogs.base.threads import WaitableLock

_ALIGNMENT = 64  # of regions: no two of them share a cache line


class Region:
    """Space in a ring.

    Attributes:
        nbytes: its size.
        start: where it begins, counted on over all rounds of the ring.
    """

    __slots__ = ("is_released", "nbytes", "start")

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.start, self.is_released = nbytes, 0, False


class Ring:
    """The space of a ring; the memory itself belongs to the caller.

    `release` may be called in any thread, also by the garbage collector in the middle of `allocate`: it only shortens the
    list of regions, which `allocate` allows between any two of its lines.

    Attributes:
        capacity: in bytes, a multiple of 64.
        waits: regions for which `allocate` had to wait.
        wait_seconds: how long it waited, in total.
    """

    def __init__(self, capacity: int) -> None:
        assert capacity > 0, f"a ring of {capacity} bytes"
        assert capacity % _ALIGNMENT == 0, f"a ring of {capacity} bytes"
        self.capacity = capacity
        self.waits, self.wait_seconds = 0, 0.0
        self._regions: deque[Region] = deque()  # those that are held, and released ones after them
        self._head = 0  # where the next region begins, counted on over all rounds
        self._lock = WaitableLock()

    @property
    def used_bytes(self) -> int:
        """Bytes that cannot be given out now."""
        with self._lock:
            return self._head - self._regions[0].start if self._regions else 0

    def allocate(self, nbytes: int, seconds_max: float) -> Region:
        """Return a region; wait for space at most `seconds_max`.

        Raises:
            LogUnavailable: no space became free in that time.
        """
        size = _aligned(nbytes)
        assert size <= self.capacity, f"{nbytes} bytes from a ring of {self.capacity}"
        region = Region(nbytes)
        with self._lock:
            if self.used_bytes + size > self.capacity:
                self._wait_for(size, seconds_max)
            if not self._regions:
                self._head = 0  # from the start again: where the writer keeps up, the same memory serves every step
            region.start = self._head
            self._head += size
            self._regions.append(region)
        return region

    def _wait_for(self, size: int, seconds_max: float) -> None:
        start = time.monotonic()
        self.waits += 1
        while self.used_bytes + size > self.capacity:
            left = start + seconds_max - time.monotonic()
            if left <= 0:
                raise LogUnavailable(
                    f"the log's writer did not free {size} bytes within {seconds_max:g} s; {self.used_bytes} of "
                    f"{self.capacity} bytes of pinned memory wait to be written"
                )
            self._lock.wait(left)
        self.wait_seconds += time.monotonic() - start

    def release(self, region: Region) -> None:
        """Take a region back."""
        with self._lock:
            region.is_released = True
            while self._regions and self._regions[0].is_released:
                self._regions.popleft()
            self._lock.notify_all()

    def extents(self, region: Region, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the one or two ranges of the memory that hold the bytes `start:stop` of a region."""
        first = (region.start + start) % self.capacity
        last = first + stop - start
        if last <= self.capacity:
            return [(first, last)] if last > first else []
        return [(first, self.capacity), (0, last - self.capacity)]


def _aligned(nbytes: int) -> int:
    """Return the space that a region takes: at least one unit, so that no two regions begin at the same place."""
    return max(1, -(-nbytes // _ALIGNMENT)) * _ALIGNMENT
