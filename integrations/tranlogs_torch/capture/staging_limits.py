"""Sizes and statistics of staging."""

from __future__ import annotations

from dataclasses import dataclass, field

from tranlogs.base import config


@dataclass(frozen=True, slots=True)
class StagingLimits:
    """Sizes, in bytes, and the longest wait for space in the ring; see `staging` and config.py."""

    ring_bytes_min: int = config.RING_BYTES_MIN
    ring_bytes_max: int = config.RING_BYTES_MAX
    ring_seconds_max: float = config.RING_SECONDS_MAX
    transfer_bytes: int = config.TRANSFER_BYTES
    staged_bytes_min: int = config.STAGED_BYTES_MIN
    fetch_bytes: int = config.FETCH_BYTES

    def ring_bytes(self, nbytes: int) -> int:
        """Return the capacity of a ring for payloads of `nbytes`."""
        two = _power_of_two(max(2 * nbytes, self.ring_bytes_min, 64))
        return two if two <= self.ring_bytes_max else max(_power_of_two(nbytes), self.ring_bytes_max)

    def staged_bytes(self, nbytes: int, largest: int, free: int) -> int:
        """Return the size of each of the two flat buffers on a device.

        Args:
            nbytes: of the largest payload.
            largest: bytes of its largest tensor.
            free: bytes that are free on the device.
        """
        return min(nbytes, max(largest, self.staged_bytes_min, free // 4))


@dataclass(slots=True)
class StagingStatistics:
    """What staging did and holds.

    Attributes:
        payloads: staged so far.
        nbytes: of these payloads.
        waits: payloads for which training waited, because the ring was full.
        wait_seconds: how long it waited, in total.
        ring_bytes: pinned memory of the ring.
        device_bytes: memory of the flat buffers, by device.
    """

    payloads: int = 0
    nbytes: int = 0
    waits: int = 0
    wait_seconds: float = 0.0
    ring_bytes: int = 0
    device_bytes: dict[str, int] = field(default_factory=dict)


def _power_of_two(nbytes: int) -> int:
    return 1 << max(0, nbytes - 1).bit_length()
