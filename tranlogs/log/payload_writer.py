"""Writing of payloads: hash, compress and write the tensors of a record.

Gradients do not change while the optimizer steps. A large payload is therefore given to the payload thread when the record
begins, and the end of the step waits for that thread. So no record is queued, and a committed record is in the file. A small
payload is written together with its description, by one system call, because waking a thread would take longer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue

import numpy as np

from ..base.config import PAYLOAD_THREAD_BYTES_MIN, WRITE_BYTES
from ..base.errors import LogUnavailable, error_text
from ..base.threads import start_thread
from ..base.types import Bytes
from ..encoding.compression import Codec, compress
from .layout import Layout, Payload
from .record_format import HEAD, checksum_of
from .segment_file import SegmentFile

_RAW_STREAK = 8  # After this number of records without a compressible piece,
_LOOK_EVERY = 16  # compression is tried only once in this number of records.

_COPIED_BYTES_MAX = 64 << 10  # a larger payload is written by a system call of its own, which takes as long as a copy


class CompressionChoices:
    """Decision, for each layout, whether compression is tried. Gradients are mostly noise, and trying costs time."""

    def __init__(self) -> None:
        self._raw: dict[Layout, int] = {}

    def looks(self, layout: Layout) -> bool:
        """Return True if compression is to be tried on the next record of a layout."""
        streak = self._raw.get(layout, 0)
        if streak >= _RAW_STREAK and streak % _LOOK_EVERY:
            self._raw[layout] = streak + 1
            return False
        return True

    def found(self, layout: Layout, *, is_raw: bool) -> None:
        """Note whether a record on which compression was tried had no compressible piece."""
        self._raw[layout] = self._raw.get(layout, 0) + 1 if is_raw else 0


class PieceWriter:
    """Writes the payload of one record to a segment.

    Attributes:
        pending: pieces that are not in the file yet. The commit writes them together with the description.
        stored_bytes: size of the payload in the file, once all pieces are prepared.
        sums, codecs: the sections of the description with these names.
    """

    def __init__(self, payload: Payload, segment: SegmentFile, offset: int, choices: CompressionChoices) -> None:
        self._payload, self._segment, self._offset, self._choices = payload, segment, offset + HEAD.size, choices
        self.pending: list[Bytes] = []
        self.stored_bytes, self.sums, self.codecs = 0, b"", b""
        self._is_prepared = False
        self._done: threading.Event | None = None
        self._failure: BaseException | None = None

    def start(self, submit: Callable[[Callable[[], None]], None]) -> None:
        """Begin to write the payload in the payload thread."""
        self._done = threading.Event()
        submit(self._run)

    def _run(self) -> None:
        try:
            self._prepare_pieces(writes=True)
        except BaseException as error:
            self._failure = error
        finally:
            assert self._done is not None
            self._done.set()

    def wait(self) -> None:
        """Wait until the payload's memory may change. If writing failed, `prepare` raises the error."""
        if self._done is not None:
            self._done.wait()
        elif not self._is_prepared and self._failure is None:
            try:
                self._prepare_pieces(writes=True)
            except Exception as error:
                self._failure = error

    def prepare(self) -> None:
        """Wait until every piece is either in the file or in `pending`.

        Raises:
            LogUnavailable: a piece could not be written.
        """
        if self._done is not None:
            self._done.wait()
        if self._failure is not None:
            raise LogUnavailable(f"{self._segment.path}: {error_text(self._failure)}") from self._failure
        if not self._is_prepared:
            self._prepare_pieces(writes=False)

    def copy_pending(self) -> None:
        """Copy the pieces that are not in the file yet."""
        if self.pending:
            self.pending = [np.concatenate(self.pending)]

    def settle(self) -> None:
        """Wait until the payload thread no longer uses the payload's memory or the file. Ignore errors."""
        if self._done is not None:
            self._done.wait()

    def _prepare_pieces(self, *, writes: bool) -> None:
        payload = self._payload
        if payload.wait is not None:
            payload.wait()
        ends = payload.layout.pieces(payload.absent, payload.sparse)
        looks = self._choices.looks(payload.layout)
        sums, sizes, codecs, at = [], [], bytearray(), 0
        pending: list[Bytes] = []
        written = 0
        for piece in pieces_of(payload.buffers, ends):
            codec, stored = compress(piece) if looks else (Codec.RAW, piece)
            sums.append(checksum_of(stored))
            pending.append(stored)
            at += stored.nbytes
            if writes and at - written >= WRITE_BYTES:
                self._segment.write(pending, self._offset + written)
                pending, written = [], at
            sizes.append(stored.nbytes)
            codecs.append(codec)
        if not writes:
            self.pending = pending
        elif pending:
            self._segment.write(pending, self._offset + written)
        self.sums = np.array(sums, "<u8").tobytes()
        if any(codecs):
            self.codecs = np.array(sizes, "<u4").tobytes() + bytes(codecs)
        if looks:
            self._choices.found(payload.layout, is_raw=not self.codecs)
        self.stored_bytes, self._is_prepared = at, True


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


class PayloadThread:
    """The thread that writes large payloads. It runs one job at a time; the caller waits for each job that it submits."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_refused = False

    def takes(self, nbytes: int) -> bool:
        """Return True if the thread is to write a payload of this size: the payload is large and a thread can be started."""
        if nbytes < PAYLOAD_THREAD_BYTES_MIN or self._is_refused:
            return False
        if self._thread is None:
            try:
                self._thread = start_thread("tranlogs-payload", self._work)
            except LogUnavailable:
                self._is_refused = True
                return False
        return True

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job in the thread."""
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # The job keeps the gradients alive.

    def stop(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None


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
