"""The write-ahead log of one journal: records go into the open segment, segments roll, and a thread syncs behind.

There are two watermarks, as positions: `committed` survives the process, `synced` survives power loss, too. A failure in any
thread latches: from then on `begin` raises LogUnavailable, and the owner of the log decides once (journal/journal.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable
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
from ..base.types import AnyArray, Bytes
from ..catalog import Catalog
from .body import BodyEncoder, EncodedBody
from .definitions import DescribedRecord, Scalars, SegmentDefinitions
from .index import IndexedRecord, LogIndex
from .layout import NO_TENSORS, Payload
from .payload_writer import CompressionChoices, PayloadThread, PieceWriter
from .record import HEAD, EntryKind, Position, digest, extent_end, pack_head
from .segments.preallocator import NO_RESERVE, Preallocator, SpaceReserve
from .segments.segment_age import SegmentAgeLimit
from .segments.segment_file import SegmentFile
from .syncing.group_commit import GroupCommit

Tensor = tuple[str, AnyArray | None]  # name, content; None = "no gradient"


class RecordWriter:
    """A record that was begun: its payload is on its way into the segment. `WriteAheadLog.commit` finishes it.

    Attributes:
        segment: where it is written.
        offset: of the record in the segment.
        payload: its tensors.
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
        """Wait until the payload's memory may change. An error is raised by the commit."""
        self.pieces.wait()

    def abort(self) -> None:
        """Drop the record; what was written of it is overwritten by the next record."""
        if self.is_open:
            self.is_open = False
            self.pieces.settle()
            self._on_abort(self)


class WriteAheadLog:
    """Appends records after a position. One thread appends; other threads sync, seal and prepare segments.

    It has a few more fields than most classes: it is the place where segments, records and threads meet.

    Args:
        folder: of the segment files.
        catalog: the journal's catalog, open for writing.
        index: of the log; the log closes it.
        config: durability and sizes.
        clock: tells the time.
        position: where the chain of records continues.
        describe: what the first record of each segment says (run, rank, environment).
        writes_watermarks: False if the checkpoint at `position` is not published yet, because the log continues after a gap.
            No watermark is written before the owner sets `writes_watermarks`.
        reserve: disk space that fresh segments leave free.

    Attributes:
        position: after the newest record.
        bytes_written: of records, since the log was opened.
        encoder: encodes the bodies of records.
    """

    def __init__(
        self,
        folder: Path,
        catalog: Catalog,
        index: LogIndex,
        config: JournalConfig,
        clock: Clock,
        position: Position,
        describe: dict[str, Any],
        *,
        writes_watermarks: bool = True,
        reserve: SpaceReserve = NO_RESERVE,
    ) -> None:
        self._folder, self._segment_bytes, self._describe = folder, config.segment_bytes, describe
        self.position = position
        self.bytes_written = 0
        self.encoder = BodyEncoder()
        self._lock = WaitableLock()
        self._segment: SegmentFile | None = None
        self._segment_base = position
        self._definitions = SegmentDefinitions()
        self._choices = CompressionChoices()
        self._writing: RecordWriter | None = None
        self._largest_record = 0
        self._age_limit = SegmentAgeLimit(catalog, clock, config.segment_age_seconds)
        # Where records are queued, the thread that logs is not the one that trains, and nothing is gained by another thread.
        self._payload_thread = PayloadThread() if config.writer == "direct" else None
        self._group = GroupCommit(
            catalog,
            index,
            clock,
            position,
            self._lock,
            syncs=config.durability == "machine",
            writes_watermarks=writes_watermarks,
            on_idle=self._seal_old,
        )
        self._preallocator = Preallocator(folder, catalog, clock, config.segment_bytes, reserve)
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
        """What ended the log; None while it works."""
        return self._group.failure

    @property
    def writes_watermarks(self) -> bool:
        """True if watermarks are written to the catalog."""
        return self._group.watermarks.is_enabled

    @writes_watermarks.setter
    def writes_watermarks(self, is_enabled: bool) -> None:
        self._group.watermarks.is_enabled = is_enabled

    # Appending: in the training thread, or in the writer thread if records are queued.

    def begin(self, payload: Payload, more: int = 0) -> RecordWriter:
        """Start a record and the writing of its payload.

        The payload's memory must not change until the record is committed, or until its `wait` has returned.

        Args:
            payload: the tensors.
            more: bytes that the record will have besides, if a description of ordinary size is not enough.

        Raises:
            LogUnavailable: the log has failed, or no segment is available.
        """
        if self._group.failure is not None:
            raise LogUnavailable(error_text(self._group.failure)) from self._group.failure
        self.abort()
        hit("log.begin")
        nbytes = payload.nbytes
        room = HEAD.size + nbytes + more + RECORD_SLACK_BYTES
        self._largest_record = max(self._largest_record, room)
        while (writing := self._begin_in_segment(payload, room)) is None:
            self._roll(room)
        if self._payload_thread is not None and self._payload_thread.takes(nbytes):
            writing.pieces.start(self._payload_thread.submit)
        return writing

    def _begin_in_segment(self, payload: Payload, room: int) -> RecordWriter | None:
        """Return a record in the open segment; None if it has no room, or if the thread behind has just sealed it."""
        with self._lock:
            segment = self._segment
            if segment is None or not segment.has_room(room):
                return None
            pieces = PieceWriter(payload, segment, segment.used_bytes, self._choices)
            self._writing = RecordWriter(segment, payload, pieces, self._record_aborted)
            return self._writing

    def abort(self) -> None:
        """Drop the record that was begun, if there is one."""
        if self._writing is not None:
            self._writing.abort()

    def _record_aborted(self, record: RecordWriter) -> None:
        if self._writing is record:
            self._writing = None
        if record.payload.release is not None:
            record.payload.release()

    def commit(
        self,
        record: RecordWriter,
        kind: EntryKind,
        step: int,
        body: EncodedBody,
        digests: bytes = b"",
        scalars: Scalars | None = None,
    ) -> Position:
        """Finish a record: wait for its payload, write its description, then its head.

        Raises:
            LogUnavailable: the disk is full or fails; the record does not count.
        """
        assert record is self._writing, "the record was dropped"
        try:
            record.pieces.prepare()
            described = self._definitions.describe(record.offset, record.payload, record.pieces, body, digests, scalars)
            after = self._write(record, kind, step, described)
            self._definitions.written(described)
        except OSError as error:
            record.abort()
            raise LogUnavailable(f"{record.segment.path}: {error}") from error
        except BaseException:
            record.abort()
            raise
        if record.payload.release is not None:
            record.payload.release()
        return after

    def append(
        self,
        kind: EntryKind,
        step: int,
        payload: Payload,
        body: EncodedBody,
        digests: bytes = b"",
        scalars: Scalars | None = None,
    ) -> Position:
        """Write a whole record.

        Raises:
            LogUnavailable: the disk is full or fails.
        """
        more = sum(len(part.blob) + sum(array.nbytes for _, array in part.arrays) for part in body.values())
        return self.commit(self.begin(payload, more), kind, step, body, digests, scalars)

    def _write(self, record: RecordWriter, kind: EntryKind, step: int, described: DescribedRecord) -> Position:
        """Write what is not in the file yet, the head last."""
        segment, offset, pieces = record.segment, record.offset, record.pieces
        description, payload_bytes = described.description, described.payload_bytes
        end = extent_end(offset, payload_bytes, len(description))
        segment.extend(end)
        padding = bytes(end - offset - HEAD.size - payload_bytes - len(description))
        rest: list[Bytes | bytes] = [*described.buffers, description, padding]
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
        if kind == EntryKind.BOUNDARY and self._age_limit.is_exceeded():
            self._roll_early()
        return after

    def forget_definitions(self) -> None:
        """Let records from here on need nothing that was written before: layouts and bodies are stored again."""
        self._definitions = SegmentDefinitions()

    # Segments.

    def roll(self) -> None:
        """Seal the open segment. The next record opens another one."""
        with self._lock:
            if self._segment is not None:
                self._group.sealing(self._segment, self.position)
                self._segment = None

    def _roll_early(self) -> None:
        """Seal the open segment because of its age. The next segments are as large as that time needs."""
        with self._lock:
            if self._segment is not None:
                fitting = max(_whole_mib(2 * self._segment.used_bytes), SEGMENT_BYTES_MIN)
                self._preallocator.size = min(fitting, self._segment_bytes)
                self.roll()

    def _roll(self, room: int) -> None:
        """Seal the open segment because it is full, and open one with room for a record of `room` bytes."""
        hit("log.roll")
        preallocator = self._preallocator
        with self._lock:
            if self._segment is not None:  # it is full: after early ones, segments may be larger again
                preallocator.size = max(preallocator.size, min(2 * preallocator.size, self._segment_bytes))
            self.roll()
        wanted = min(self._largest_record * SEGMENT_RECORDS_WANTED, SEGMENT_BYTES_GROWN_MAX)
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
            self._age_limit.segment_opened()
            self._segment, self._segment_base = segment, base
            self._group.opened(segment, base)

    def _write_first_record(self, segment: SegmentFile, base: Position) -> None:
        body = {**self._describe, "ordinal": segment.ordinal, "timeline": base.timeline}
        pieces = PieceWriter(NO_TENSORS, segment, 0, self._choices)
        self._writing = RecordWriter(segment, NO_TENSORS, pieces, self._record_aborted)
        self.commit(self._writing, EntryKind.SEGMENT, base.step, self.encoder.whole(body, None))

    def _has_records(self) -> bool:
        """Return True if the open segment has records besides its first one."""
        return self._segment is not None and self.position.sequence > self._segment_base.sequence

    def _seal_old(self) -> None:
        """Seal a segment that is old although the training thread writes nothing now: a step may take long."""
        self._age_limit.look()
        with self._lock:
            if self._writing is None and self._has_records() and self._age_limit.is_exceeded():
                self._roll_early()

    def seal_now(self) -> None:
        """Seal the open segment, from any thread, unless a record is being written."""
        with self._lock:
            if self._writing is None and self._has_records():
                self.roll()

    # Syncing and the end.

    def demand_sync(self) -> None:
        """Let what is committed, and what follows, survive power loss, whatever the settings say. For any thread.

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
        """Wait until everything that is committed is synced; False after `timeout` seconds or a failure."""
        return self._group.wait_synced(timeout)

    def close(self, *, truncates: bool = True) -> None:
        """Seal the open segment, sync, and stop the threads.

        Args:
            truncates: give back the unused part of the last segment; False if logging will continue and may need the file.

        Raises:
            LogUnavailable: the log could not be sealed and synced.
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
        self._group.feed.close()
        if failure is not None:
            self._group.discard()
            raise LogUnavailable(error_text(failure)) from failure


def _whole_mib(nbytes: int) -> int:
    return -(-nbytes // MIB) * MIB
