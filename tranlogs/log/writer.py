"""The write-ahead log of one journal: records go into the open segment, segments roll, a thread syncs behind.

Watermarks, as positions: `committed` survives the process, `synced` also power loss. A failure in any thread latches: from
then on `begin` raises LogUnavailable, and the owner decides once (journal/journal.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..base.clock import Clock
from ..base.config import (
    MIB,
    RECORD_SLACK_BYTES,
    SEGMENT_BYTES_GROWN_MAX,
    SEGMENT_BYTES_MIN,
    SEGMENT_RECORDS_WANTED,
    JournalConfig,
)
from ..base.errors import LogUnavailable, error_text
from ..base.failpoints import hit
from ..base.threads import WaitableLock
from ..base.types import AnyArray
from ..catalog import Catalog
from ..encoding import tree
from .body import BodyEncoder, EncodedBody, PartsWriter
from .group_commit import GroupCommit
from .index import IndexedRecord, LogIndex
from .layout import Layout, Payload, SparseForm, pack_layout
from .payload_writer import CompressionChoices, PayloadThread, PieceWriter
from .record import HEAD, Description, EntryKind, Position, digest, extent_end, pack_description, pack_head
from .segments.preallocator import Preallocator
from .segments.segment_age import SegmentAgeLimit
from .segments.segment_file import SegmentFile

Tensor = tuple[str, AnyArray | None]  # name, content; None = "no gradient"
Scalars = dict[str, float]  # what the loop noted for its curves

_EMPTY = Layout(())


class RecordWriter:
    """A record that was begun: its payload is on its way into the segment. `WriteAheadLog.commit` finishes it."""

    __slots__ = ("_log", "is_open", "offset", "payload", "pieces", "segment")

    def __init__(self, log: WriteAheadLog, segment: SegmentFile, payload: Payload, pieces: PieceWriter) -> None:
        self._log, self.segment, self.payload, self.pieces = log, segment, payload, pieces
        self.offset = segment.used_bytes
        self.is_open = True  # False once it is committed or aborted; the log aborts it when another record begins

    def wait(self) -> None:
        """Wait until the payload's memory may change. An error is raised by the commit."""
        self.pieces.wait()

    def abort(self) -> None:
        """Forget the record; what was written of it is overwritten by the next one."""
        if self.is_open:
            self.is_open = False
            self.pieces.settle()
            self._log._record_aborted(self)


class WriteAheadLog:
    """Appends records after a position. One thread appends; others sync, seal and prepare.

    Args:
        folder: where the segment files lie.
        catalog: the journal's catalog, open for writing.
        index: of the log; the log closes it.
        config: durability, sizes.
        clock: for times in the catalog.
        position: where the chain goes on.
        describe: what the first record of each segment says (run, rank, environment).
        on_sealed: called, in a background thread, after a segment is sealed in the catalog.
        counts: False where the checkpoint at `position` is yet to be published (a log that goes on behind a gap): the
            owner sets it then, and no watermark is written before.
        keep_free, on_full: see `Preallocator`.

    Attributes:
        position: after the newest record.
        bytes_written: of records.
    """

    def __init__(self, folder: Path, catalog: Catalog, index: LogIndex, config: JournalConfig, clock: Clock, position: Position,
                 describe: dict[str, Any], on_sealed: Callable[[], None] = lambda: None, *,
                 counts: bool = True, keep_free: Callable[[], int] = lambda: 0,
                 on_full: Callable[[], None] = lambda: None) -> None:  # fmt: skip
        self._folder, self._config, self._clock, self._describe = folder, config, clock, describe
        self._index: LogIndex | None = index
        self.position = position
        self.bytes_written = 0
        self.encoder = BodyEncoder()
        self._lock = WaitableLock()
        self._segment: SegmentFile | None = None
        self._segment_since, self._segment_base = 0.0, position
        self._layouts: dict[Layout, int] = {}  # offsets of the records in the open segment that define them
        self._parts = PartsWriter()
        self._choices = CompressionChoices()
        self._writing: RecordWriter | None = None
        self._largest = 0
        self._lease = SegmentAgeLimit(catalog, clock, config.segment_age_seconds)
        # Where records are queued, the thread that logs is not the one that trains, and nothing is gained by another one.
        self._payload_thread = PayloadThread() if config.writer == "direct" else None
        self._group = GroupCommit(catalog, index, clock, position, self._lock, syncs=config.durability == "machine",
                                  counts=counts, on_sealed=on_sealed, on_idle=self._seal_old)  # fmt: skip
        self._preallocator = Preallocator(folder, catalog, clock, config.segment_bytes, keep_free=keep_free, on_full=on_full)
        try:
            self._group.start()
        except BaseException:
            self._preallocator.stop()
            raise

    # Where the log is.

    @property
    def boundary(self) -> Position:
        """The newest committed boundary."""
        return self._group.boundary

    @property
    def synced(self) -> Position:
        """The newest boundary known to survive power loss."""
        return self._group.synced

    @property
    def failure(self) -> BaseException | None:
        """What ended the log, if something did."""
        return self._group.failure

    @property
    def counts(self) -> bool:
        """Whether watermarks are written."""
        return self._group.counts

    @counts.setter
    def counts(self, counts: bool) -> None:
        self._group.counts = counts

    # Appending: the training thread, or the writer thread where records are queued.

    def begin(self, payload: Payload, more: int = 0) -> RecordWriter:
        """Start a record and the writing of its payload. The payload's memory stays as it is until the record is committed,
        or its `wait` has returned.

        Args:
            payload: the tensors.
            more: bytes that the record will have besides, where a description of ordinary size is not enough.

        Raises:
            LogUnavailable: the log has failed, or no segment is to be had.
        """
        if self._group.failure is not None:
            raise LogUnavailable(error_text(self._group.failure)) from self._group.failure
        self.abort()
        hit("log.begin")
        nbytes = payload.nbytes
        room = HEAD.size + nbytes + more + RECORD_SLACK_BYTES
        self._largest = max(self._largest, room)
        while (writing := self._begun(payload, room)) is None:
            self._roll(room)
        if self._payload_thread is not None and self._payload_thread.takes(nbytes):
            writing.pieces.start(self._payload_thread.submit)
        return writing

    def _begun(self, payload: Payload, room: int) -> RecordWriter | None:
        """Return a record in the open segment; None where it has no room, or where the thread behind has just sealed it."""
        with self._lock:
            segment = self._segment
            if segment is None or not segment.has_room(room):
                return None
            pieces = PieceWriter(payload, segment, segment.used_bytes, self._choices)
            self._writing = RecordWriter(self, segment, payload, pieces)
            return self._writing

    def abort(self) -> None:
        """Forget the record that was begun, if one was."""
        if self._writing is not None:
            self._writing.abort()

    def commit(self, record: RecordWriter, kind: EntryKind, step: int, body: EncodedBody, digests: bytes = b"",
               scalars: Scalars | None = None) -> Position:  # fmt: skip
        """Finish a record: wait for its payload, write its description, then its head.

        Raises:
            LogUnavailable: the disk is full or fails; the record does not count.
        """
        assert record is self._writing, "the record was dropped"
        try:
            return self._commit(record, kind, step, body, digests, scalars)
        except OSError as error:
            record.abort()
            raise LogUnavailable(f"{record.segment.path}: {error}") from error
        except BaseException:
            record.abort()
            raise

    def append(self, kind: EntryKind, step: int, payload: Payload, body: EncodedBody, digests: bytes = b"",
               scalars: Scalars | None = None) -> Position:  # fmt: skip
        """Write a whole record.

        Raises:
            LogUnavailable: the disk is full or fails.
        """
        more = sum(len(part.blob) + sum(array.nbytes for _, array in part.arrays) for part in body.values())
        return self.commit(self.begin(payload, more), kind, step, body, digests, scalars)

    def _commit(self, record: RecordWriter, kind: EntryKind, step: int, body: EncodedBody, digests: bytes,
                scalars: Scalars | None) -> Position:  # fmt: skip
        offset, payload, pieces = record.offset, record.payload, record.pieces
        pieces.prepare()
        layout_at, layout = self._layout(payload.layout, offset)
        body_at = self._parts.shared_body(body)
        payload_end = offset + HEAD.size + pieces.stored_bytes
        placed = None if body_at else self._parts.write(body, offset, payload_end)
        description = pack_description(Description(
            layout_at, body_at, payload.nbytes, layout, _absent(payload), _sparse(payload.sparse), pieces.sums, pieces.codecs,
            digests, tree.encode(scalars) if scalars else b"", tree.encode(placed.packed) if placed else b"",
        ))  # fmt: skip
        payload_bytes = (placed.end if placed else payload_end) - offset - HEAD.size
        end = extent_end(offset, payload_bytes, len(description))
        after = self._write(record, kind, step, [*(placed.buffers if placed else ()), description], payload_bytes, end)
        if layout:
            self._layouts[payload.layout] = offset
        if placed is not None:
            self._parts.written(placed)
        if payload.release is not None:
            payload.release()
        return after

    def _write(self, record: RecordWriter, kind: EntryKind, step: int, rest: list[Any], payload_bytes: int,
               end: int) -> Position:  # fmt: skip
        """Write what is not in the file yet, the head last."""
        segment, offset, pieces, description = record.segment, record.offset, record.pieces, rest[-1]
        segment.extend(end)
        rest.append(bytes(end - offset - HEAD.size - payload_bytes - len(description)))
        is_pending = bool(pieces.pending)
        start = offset + HEAD.size + (0 if is_pending else pieces.stored_bytes)
        segment.write([*pieces.pending, *rest] if is_pending else rest, start)
        position = self.position
        is_first = kind == EntryKind.SEGMENT
        sequence = position.sequence if is_first else position.sequence + 1
        head = pack_head(segment.segment_id, sequence, step, kind, payload_bytes, description, position.chain)
        hit("log.before_commit")
        segment.write_head(head, offset)  # commit point for a killed process
        hit("log.after_commit")
        after = position if is_first else Position(sequence, step, digest(head), position.timeline)
        record.is_open = False
        with self._lock:  # from here on the thread behind may seal the segment
            segment.used_bytes = end
            self.position, self._writing = after, None
            self._group.written(IndexedRecord(segment.segment_id, sequence, step, offset, head, description))
            if kind == EntryKind.BOUNDARY:
                self._group.committed(after)
        self.bytes_written += end - offset
        if kind == EntryKind.BOUNDARY and self._is_segment_old():
            self._roll_early()
        return after

    def _layout(self, layout: Layout, offset: int) -> tuple[int, bytes]:
        """Return where a layout is defined, and its bytes if that is here."""
        if not layout.tensors:
            return 0, b""
        known = self._layouts.get(layout)
        return (offset, pack_layout(layout)) if known is None else (known, b"")

    def _record_aborted(self, record: RecordWriter) -> None:
        if self._writing is record:
            self._writing = None
        if record.payload.release is not None:
            record.payload.release()

    def forget_definitions(self) -> None:
        """Let what follows need nothing that was written before: layouts and bodies are stored anew."""
        self._layouts, self._parts = {}, PartsWriter()

    # Segments.

    def roll(self) -> None:
        """Seal the open segment (the next record opens another one)."""
        with self._lock:
            if self._segment is not None:
                self._group.sealing(self._segment, self.position)
                self._segment = None

    def _roll_early(self) -> None:
        """Seal the open segment because of its age; the next ones are as large as is needed for that time."""
        with self._lock:
            if self._segment is not None:
                fitting = max(_whole_mib(2 * self._segment.used_bytes), SEGMENT_BYTES_MIN)
                self._preallocator.size = min(fitting, self._config.segment_bytes)
                self.roll()

    def _roll(self, room: int) -> None:
        hit("log.roll")
        preallocator = self._preallocator
        with self._lock:
            if self._segment is not None:  # it is full: after early ones, they may be larger again
                preallocator.size = max(preallocator.size, min(2 * preallocator.size, self._config.segment_bytes))
            self.roll()
        wanted = min(self._largest * SEGMENT_RECORDS_WANTED, SEGMENT_BYTES_GROWN_MAX)
        preallocator.size = max(preallocator.size, _whole_mib(wanted))
        segment = preallocator.take(_whole_mib(room + RECORD_SLACK_BYTES))
        self.forget_definitions()
        base = self.position
        with self._lock:  # the thread behind sees the first record and its segment together
            try:
                self._write_first_record(segment, base)
            except BaseException:
                segment.close()  # its file is retired, and may be used again, when the log is opened again
                raise
            self._segment, self._segment_since, self._segment_base = segment, self._clock.monotonic(), base
            self._group.opened(segment, base)

    def _write_first_record(self, segment: SegmentFile, base: Position) -> None:
        body = {**self._describe, "ordinal": segment.ordinal, "timeline": base.timeline}
        payload = Payload(_EMPTY, ())
        pieces = PieceWriter(payload, segment, 0, self._choices)
        self._writing = RecordWriter(self, segment, payload, pieces)
        self.commit(self._writing, EntryKind.SEGMENT, base.step, self.encoder.whole(body, None))

    def _is_segment_old(self) -> bool:
        age = self._lease.age_seconds
        return age is not None and self._clock.monotonic() - self._segment_since > age

    def _is_unsealed(self) -> bool:
        """Whether the open segment has records."""
        return self._segment is not None and self.position.sequence > self._segment_base.sequence

    def _seal_old(self) -> None:
        """Seal a segment that is old although the training thread writes nothing now: it may be busy for long."""
        self._lease.look()
        with self._lock:
            if self._writing is None and self._is_unsealed() and self._is_segment_old():
                self._roll_early()

    def seal_now(self) -> None:
        """Seal the open segment unless a record is being written. From any thread."""
        with self._lock:
            if self._writing is None and self._is_unsealed():
                self.roll()

    # Syncing and the end.

    def demand_sync(self) -> None:
        """Let everything that is committed, and what follows, survive power loss, whatever the settings say. From any thread.

        Raises:
            OSError: the disk fails.
        """
        with self._lock:  # nothing may be committed between the flush of all files and the first group that is synced
            if self._group.syncs:
                return
            for path in self._folder.glob("*.seg"):
                with suppress(FileNotFoundError):  # recycled meanwhile
                    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    try:
                        os.fdatasync(fd)
                    finally:
                        os.close(fd)
            self._group.demand_sync()

    def wait_synced(self, timeout: float = 60.0) -> bool:
        """Wait until everything committed is synced; False after `timeout` seconds or a failure."""
        return self._group.wait_synced(timeout)

    def close(self, *, truncates: bool = True) -> None:
        """Seal the open segment, sync, stop the threads.

        Args:
            truncates: give back what the last segment does not need; False where logging will go on and may need the file.

        Raises:
            LogUnavailable: that was not possible.
        """
        self.abort()
        self.roll()
        self._group.stop(truncates=truncates)
        if self._payload_thread is not None:
            self._payload_thread.stop()
        failure = self._group.failure
        try:
            self._preallocator.stop()
        except LogUnavailable as error:
            failure = failure or error
        index, self._index = self._index, None
        if index is not None:
            index.close()
        if failure is not None:
            self._group.discard()
            raise LogUnavailable(error_text(failure)) from failure


def _absent(payload: Payload) -> bytes:
    """Return the bitmap of absent tensors."""
    if not payload.absent:
        return b""
    bits = bytearray((len(payload.layout) + 7) // 8)
    for i in payload.absent:
        bits[i // 8] |= 1 << (i % 8)
    return bytes(bits)


def _sparse(sparse: Mapping[int, SparseForm]) -> bytes:
    """Return the forms of sparse tensors."""
    return tree.encode({i: tuple(form) for i, form in sparse.items()}) if sparse else b""


def _whole_mib(nbytes: int) -> int:
    return -(-nbytes // MIB) * MIB
