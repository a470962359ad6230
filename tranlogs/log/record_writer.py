"""A record that has been begun and not committed."""

from __future__ import annotations

from collections.abc import Callable

from .layout import Payload
from .payload_writer import PieceWriter
from .segments.segment_file import SegmentFile

_COPIED_BYTES_MAX = 64 << 10  # a larger payload is written by a system call of its own, which takes as long as a copy


class RecordWriter:
    """A record whose payload is being written to the segment. `WriteAheadLog.commit` finishes it.

    Attributes:
        segment: the segment that the record is written to.
        offset: of the record in the segment.
        payload: the tensors of the record.
        pieces: writes the payload.
        is_open: False once the record is committed or aborted. The log aborts it when another record begins.
    """

    __slots__ = ("_on_abort", "is_open", "offset", "payload", "pieces", "segment")

    def __init__(
        self, segment: SegmentFile, payload: Payload, pieces: PieceWriter, on_abort: Callable[[RecordWriter], None]
    ) -> None:
        self.segment, self.payload, self.pieces, self._on_abort = segment, payload, pieces, on_abort
        self.offset = segment.used_bytes
        self.is_open = True

    def wait(self) -> None:
        """Wait until the payload's memory may change. The commit raises the error if writing failed."""
        self.pieces.wait()

    def hold(self) -> None:
        """Return when the payload's memory may change: a small payload is copied, a large one is written.

        Raises:
            LogUnavailable: writing failed.
        """
        if self.payload.nbytes > _COPIED_BYTES_MAX:
            self.pieces.wait()
        self.pieces.prepare()
        self.pieces.copy_pending()

    def abort(self) -> None:
        """Drop the record. The next record overwrites the bytes that were written."""
        if self.is_open:
            self.is_open = False
            self.pieces.settle()
            self._on_abort(self)
