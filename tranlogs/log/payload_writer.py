"""Writing of payloads: hash, compress and write the tensors of a record.

Gradients do not change while the optimizer steps. A large payload is therefore given to another thread when the record
begins, and the end of the step waits for that thread. So no record is queued, and a committed record is in the file. A small
payload is written together with its description, by one system call, because waking a thread would take longer.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..base import lazy_numpy as np
from ..base.config import RECORD_SLACK_BYTES, WRITE_BYTES
from ..base.errors import LogUnavailable, error_text
from ..base.types import Bytes
from ..encoding.compression import Codec, compress
from .layout import Layout, Payload
from .record_format import HEAD, checksum_of
from .segment_file import SegmentFile
from .writer_thread import WriterThread

_RAW_STREAK = 8  # After this number of records without a compressible piece,
_LOOK_EVERY = 16  # compression is tried only once in this number of records.

_COPIED_BYTES_MAX = 64 << 10  # a larger payload is written by a system call of its own, which takes as long as a copy


class CompressionChoices:
    """Decision, for each layout, whether compression is tried. Gradients are mostly noise, and trying costs time."""

    def __init__(self) -> None:
        self._layout: Layout | None = None  # of the newest record: records of one layout follow one another
        self._raw = 0  # records of this layout in a row without a compressible piece
        self._others: dict[Layout, int] = {}  # the same of other layouts

    def looks(self, layout: Layout) -> bool:
        """Return True if compression is to be tried on the next record of a layout."""
        if layout is not self._layout:
            if self._layout is not None:
                self._others[self._layout] = self._raw
            self._layout, self._raw = layout, self._others.get(layout, 0)
        if self._raw >= _RAW_STREAK and self._raw % _LOOK_EVERY:
            self._raw += 1
            return False
        return True

    def found(self, *, is_raw: bool) -> None:
        """Note whether the record on which compression was tried had no compressible piece."""
        self._raw = self._raw + 1 if is_raw else 0


class Record:
    """A record from its beginning to its commit, and the writer of its payload. `WriteAheadLog.commit` finishes it.

    Attributes:
        segment: where it is written, at `offset`; None if it is to be queued as a whole, and its payload is a copy.
        is_open: False once the record is committed, queued or aborted. The log aborts it when another record begins.
        is_prepared: True once every piece is in the file or in `pending`.
        pending: pieces that are not in the file yet. The commit writes them together with the description.
        stored_bytes: size of the payload in the file, once all pieces are prepared.
        sums, codecs: the sections of the description with these names.
    """

    def __init__(self, payload: Payload, segment: SegmentFile | None = None, choices: CompressionChoices | None = None) -> None:
        self.payload, self.segment, self._choices = payload, segment, choices
        self.offset = 0 if segment is None else segment.used_bytes
        self.is_open = True
        self.pending: list[Bytes] = []
        self.stored_bytes, self.sums, self.codecs = 0, b"", b""
        self.is_prepared = False
        self._thread: WriterThread | None = None
        self._failure: BaseException | None = None

    def start(self, thread: WriterThread) -> None:
        """Begin to write the payload in another thread."""
        self._thread = thread
        thread.submit(self.payload.nbytes, self._write_aside)

    def _write_aside(self) -> None:
        try:
            self._prepare_pieces(writes=True)
        except BaseException as error:
            self._failure = error

    def wait(self) -> None:
        """Wait until the payload's memory may change. If writing failed, `prepare` raises the error."""
        if self.segment is None:
            return
        self._settle()
        if not self.is_prepared and self._failure is None:
            try:
                self._prepare_pieces(writes=True)
            except Exception as error:
                self._failure = error

    def prepare(self) -> None:
        """Wait until every piece is either in the file or in `pending`.

        Raises:
            LogUnavailable: a piece could not be written.
        """
        assert self.segment is not None, "the record is to be queued"
        if self._thread is not None:
            self._thread.drain()
        if self._failure is not None:
            raise LogUnavailable(f"{self.segment.path}: {error_text(self._failure)}") from self._failure
        if not self.is_prepared:
            self._prepare_pieces(writes=False)

    def hold(self) -> None:
        """Return when the payload's memory may change: a small payload is copied, a large one is written.

        Raises:
            LogUnavailable: writing failed.
        """
        if self.segment is None:
            return
        if self.payload.nbytes > _COPIED_BYTES_MAX:
            self.wait()
        self.prepare()
        if self.pending:
            self.pending = [self.pending[0].copy() if len(self.pending) == 1 else np.concatenate(self.pending)]

    def has_room(self, more: int) -> bool:
        """Return True if the record can have `more` further bytes where it stands."""
        nbytes = HEAD.size + self.payload.nbytes + more + RECORD_SLACK_BYTES
        return self.segment is None or self.segment.has_room(nbytes)

    def abort(self) -> None:
        """Drop the record, unless it is committed. The next record overwrites the bytes that were written."""
        if self.is_open:
            self.is_open = False
            self._settle()
            self.release()

    def release(self) -> None:
        """Let the payload's memory be used again."""
        if self.payload.release is not None:
            self.payload.release()

    def _settle(self) -> None:
        """Wait until the other thread no longer uses the payload's memory or the file. Ignore errors."""
        if self._thread is not None:
            self._thread.drain()

    def _prepare_pieces(self, *, writes: bool) -> None:
        payload, segment, choices, start = self.payload, self.segment, self._choices, self.offset + HEAD.size
        assert segment is not None
        assert choices is not None
        if payload.wait is not None:
            payload.wait()
        ends = payload.layout.pieces(payload.absent, payload.sparse)
        looks = choices.looks(payload.layout)
        sums, sizes, codecs, at = [], [], bytearray(), 0
        pending: list[Bytes] = []
        written = 0
        for piece in pieces_of(payload.buffers, ends):
            codec, stored = compress(piece) if looks else (Codec.RAW, piece)
            sums.append(checksum_of(stored))
            pending.append(stored)
            at += stored.nbytes
            if writes and at - written >= WRITE_BYTES:
                segment.write(pending, start + written)
                pending, written = [], at
            sizes.append(stored.nbytes)
            codecs.append(codec)
        if not writes:
            self.pending = pending
        elif pending:
            segment.write(pending, start + written)
        self.sums = np.array(sums, "<u8").tobytes()
        if any(codecs):
            self.codecs = np.array(sizes, "<u4").tobytes() + bytes(codecs)
        if looks:
            choices.found(is_raw=not self.codecs)
        self.stored_bytes, self.is_prepared = at, True


def pieces_of(buffers: Iterable[Bytes], ends: Iterable[int]) -> list[Bytes]:
    """Cut a payload into its pieces. A piece that spans several buffers is copied into a new one."""
    found: list[Bytes] = []
    rest = iter(buffers)
    current: Bytes = np.empty(0, np.uint8)
    start = 0  # offset of `current` in the payload
    at = 0
    for end in ends:
        parts = []
        while at < end:
            while at >= start + current.nbytes:
                start += current.nbytes
                current = next(rest)
            stop = min(end, start + current.nbytes)
            parts.append(current if at == start and stop == start + current.nbytes else current[at - start : stop - start])
            at = stop
        found.append(parts[0] if len(parts) == 1 else np.concatenate(parts))
    return found
