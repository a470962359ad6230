"""The size of the segments that are prepared next. It follows the sizes of records and the age at which segments are sealed."""

from __future__ import annotations

from ...base.config import MIB, SEGMENT_BYTES_GROWN_MAX, SEGMENT_BYTES_MIN, SEGMENT_RECORDS_WANTED
from .preallocator import Preallocator


class SegmentSizing:
    """Sets the size that a preallocator gives to the next segments.

    Args:
        preallocator: of the log.
        segment_bytes: the configured size.

    Attributes:
        largest_record: bytes of the largest record so far. The log updates it.
    """

    def __init__(self, preallocator: Preallocator, segment_bytes: int) -> None:
        self._preallocator, self._segment_bytes = preallocator, segment_bytes
        self.largest_record = 0

    def after_full_segment(self) -> None:
        """Double the size, up to the configured one, because a segment became full before it was old."""
        preallocator = self._preallocator
        preallocator.size = max(preallocator.size, min(2 * preallocator.size, self._segment_bytes))

    def after_old_segment(self, used_bytes: int) -> None:
        """Shrink the next segments, because one was old when only `used_bytes` of it were used."""
        self._preallocator.size = min(max(whole_mib(2 * used_bytes), SEGMENT_BYTES_MIN), self._segment_bytes)

    def fit_records(self) -> None:
        """Make the next segments large enough for several of the largest records."""
        wanted = min(self.largest_record * SEGMENT_RECORDS_WANTED, SEGMENT_BYTES_GROWN_MAX)
        self._preallocator.size = max(self._preallocator.size, whole_mib(wanted))


def whole_mib(nbytes: int) -> int:
    """Return a number of bytes rounded up to a whole MiB."""
    return -(-nbytes // MIB) * MIB
