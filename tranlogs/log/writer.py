"""The write-ahead log of one journal. Records are appended to the open segment; the sync thread makes them durable.

There are two positions: committed records survive the end of the process, synced records survive power loss.
After a failure in any thread, `begin` raises LogUnavailable, and the journal suspends logging (journal/journal_log.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..base.atomic_files import is_disk_full
from ..base.clock import Clock
from ..base.config import (
    CATALOG_SECONDS,
    FORMAT_VERSION,
    META_BYTES_MAX,
    PAYLOAD_THREAD_BYTES_MIN,
    RECORD_SLACK_BYTES,
    JournalConfig,
)
from ..base.errors import CatalogUnavailable, CorruptCatalog, LogUnavailable, error_text
from ..base.failpoints import hit
from ..base.threads import WaitableLock
from ..base.types import AnyArray, Bytes
from ..catalog import Catalog
from .group_commit import GroupCommit
from .layout import NO_TENSORS, Layout, Payload
from .payload_writer import CompressionChoices, Record
from .preallocator import Preallocator, whole_mib
from .record_body import BodyEncoder, EncodedContent, PlacedBody, SegmentDefinitions, body_bytes
from .record_format import HEAD, Head, Position, RecordKind, checksum_of, digest, extent_end, pack_head, pack_place
from .record_rows import RecordRow
from .segment_file import SegmentFile
from .writer_thread import WriterThread


class SegmentAgeLimit:
    """Age of the open segment, and the limit at which the segment is sealed.

    Attributes:
        age_seconds: the smaller of the configured and the requested limit; None for no limit.
    """

    def __init__(self, catalog: Catalog, clock: Clock, configured: float | None) -> None:
        self._catalog, self._clock, self._configured = catalog, clock, configured
        self._read_at = clock.monotonic() - CATALOG_SECONDS
        self._opened_at = clock.monotonic()
        self.age_seconds = configured

    def segment_opened(self) -> None:
        """Note that a new segment is open from now on."""
        self._opened_at = self._clock.monotonic()

    def is_exceeded(self) -> bool:
        """Return True if the open segment is older than the limit."""
        age = self.age_seconds
        return age is not None and self._clock.monotonic() - self._opened_at > age

    def read_request(self) -> None:
        """Read the monitor's request, at most once in CATALOG_SECONDS. A request that is not renewed expires."""
        now = self._clock.monotonic()
        if now - self._read_at < CATALOG_SECONDS:
            return
        self._read_at = now
        try:
            request = self._catalog.read(lambda tables: tables.request("seal")) or {}
            asked = float(request["age_seconds"]) if float(request.get("until", 0.0)) > self._clock.now() else None
        except (CorruptCatalog, CatalogUnavailable, KeyError, TypeError, ValueError):
            asked = None
        found = [age for age in (self._configured, asked) if age is not None and age > 0]
        self.age_seconds = min(found, default=None)


Tensor = tuple[str, AnyArray | None]  # name, content; None = "no gradient"


class WriteAheadLog:
    """The log of one journal, open for appending. One thread appends; other threads sync, seal and prepare segments.

    If the disk is full or fails, or the log has failed before, its methods raise LogUnavailable.

    Args:
        segment_header: body of the first record of each segment (run, rank, environment).
        writes_watermarks: False if the checkpoint at `position` is not published yet, because the log continues after a gap.
            The log then writes no watermark until the journal sets `group.rows.writes_watermarks`.
        demand_writer: called before records are made durable; raises if this process must not write the journal any more.

    Attributes:
        position: after the newest record.
        bytes_written: bytes of records that were written since the log was opened.
        tensor_bytes: those of the tensors of steps.
        tensor_records: number of steps that were logged with tensors.
        tensor_layout: layout of the newest of these; None if there was none.
        close_held: commits a record that is kept open for further content, so that the segment can be sealed.
    """

    def __init__(
        self,
        folder: Path,
        catalog: Catalog,
        config: JournalConfig,
        clock: Clock,
        position: Position,
        segment_header: dict[str, Any],
        *,
        writes_watermarks: bool = True,
        space_to_leave: Callable[[], int] = lambda: 0,
        on_full: Callable[[], None] = lambda: None,
        demand_writer: Callable[[], None] = lambda: None,
    ) -> None:
        self._segment_header = segment_header
        self.position = position
        self.bytes_written = self.tensor_bytes = self.tensor_records = 0
        self.tensor_layout: Layout | None = None
        self.encoder = BodyEncoder()
        self.close_held: Callable[[], None] = lambda: None
        self._lock = WaitableLock()
        self._segment: SegmentFile | None = None
        self._definitions = SegmentDefinitions()
        self._choices = CompressionChoices()
        self._writing: Record | None = None
        self._age_limit = SegmentAgeLimit(catalog, clock, config.segment_age_seconds)
        # If records are queued, a writer thread logs already, and another thread would gain nothing.
        self._may_use_thread, self._thread_bytes_max = config.writer == "direct", config.queue_bytes_max
        self._thread: WriterThread | None = None  # writes large payloads; started with the first one
        self.group = GroupCommit(
            folder,
            catalog,
            clock,
            self._lock,
            position,
            syncs=config.durability == "machine",
            writes_watermarks=writes_watermarks,
            on_idle=self._seal_old,
            demand_writer=demand_writer,
        )
        self._preallocator = Preallocator(folder, catalog, self.group.add_change, clock, config, space_to_leave, on_full)
        try:
            self.group.start()
        except BaseException:
            self._preallocator.stop()
            raise

    # Appending: on the training thread, or on the writer thread if records are queued.

    def begin(self, payload: Payload, more: int = 0) -> Record:
        """Start a record and the writing of its payload.

        The payload's memory must not change until the record is committed, or until its `wait` has returned.

        Args:
            more: further bytes that the record needs, if its description is larger than RECORD_SLACK_BYTES.
        """
        self.group.demand_sound()
        if self._writing is not None:
            self.abort()
        hit("log.begin")
        nbytes = payload.nbytes
        room = HEAD.size + nbytes + more + RECORD_SLACK_BYTES
        self._preallocator.largest_record = max(self._preallocator.largest_record, room)
        while (writing := self._begin_in_segment(payload, room)) is None:
            self._roll(room)
        if nbytes >= PAYLOAD_THREAD_BYTES_MIN and (thread := self._find_thread()) is not None:
            writing.start(thread)
        return writing

    def _find_thread(self) -> WriterThread | None:
        """Return the thread that writes large payloads; None if there is to be none, or none can be started."""
        if self._thread is None and self._may_use_thread:
            try:
                self._thread = WriterThread(self._thread_bytes_max)
            except LogUnavailable:
                self._may_use_thread = False
        return self._thread

    def _begin_in_segment(self, payload: Payload, room: int) -> Record | None:
        """Return a record in the open segment; None if the segment is full, or if the sync thread has just sealed it."""
        with self._lock:
            segment = self._segment
            if segment is None or not segment.has_room(room):
                return None
            try:
                if segment.used_bytes + room > segment.allocated:
                    self._preallocator.allocate(segment, segment.used_bytes + room)
            except OSError as error:
                if is_disk_full(error) and self._has_records():
                    return None  # The next segment has blocks already.
                raise LogUnavailable(f"{segment.path}: {error}") from error
            self._writing = Record(payload, segment, self._choices)
            return self._writing

    def abort(self) -> None:
        """Drop the record that was begun and not committed, if there is one."""
        if self._writing is not None:
            self._writing.abort()
            self._writing = None

    def _is_writing(self) -> bool:
        """Return True if a record was begun and is neither committed nor dropped."""
        return self._writing is not None and self._writing.is_open

    def commit(self, record: Record, content: EncodedContent) -> Position:
        """Finish a record: wait until its payload is written, then write its description and its head.

        Raises:
            LogUnavailable: the disk is full or fails; the record is dropped.
        """
        segment, definitions = record.segment, self._definitions
        assert segment is not None, "the record is to be queued"
        assert record is self._writing, "another record was begun"
        assert record.is_open, "the record was aborted"
        try:
            if not record.is_prepared:
                record.prepare()
            description, placed = definitions.describe(record, content)
            after = self._write(record, segment, content, description, placed)
            definitions.written(record.payload.layout, placed, pack_place(record.offset, after.chain))
        except OSError as error:
            record.abort()
            raise LogUnavailable(f"{segment.path}: {error}") from error
        except BaseException:
            record.abort()
            raise
        record.release()
        return after

    def append(self, payload: Payload, content: EncodedContent) -> Position:
        """Write a whole record."""
        return self.commit(self.begin(payload, body_bytes(content.body)), content)

    def _write(
        self, record: Record, segment: SegmentFile, content: EncodedContent, description: bytes, placed: PlacedBody
    ) -> Position:
        """Write the bytes of a record that are not in the file yet, the head last."""
        offset, kind = record.offset, content.kind
        assert len(description) <= META_BYTES_MAX, f"a description of {len(description)} bytes"
        assert not content.covered or kind is RecordKind.BOUNDARY, f"a record of kind {kind.name} covers no steps"
        payload_bytes = placed.end - offset - HEAD.size
        end = extent_end(offset, payload_bytes, len(description))
        if end > segment.allocated:
            segment.allocate(end)
        padding = bytes(end - offset - HEAD.size - payload_bytes - len(description))
        rest: list[Bytes | bytes] = [*placed.buffers, description, padding]
        is_pending = bool(record.pending)
        start = offset + HEAD.size + (0 if is_pending else record.stored_bytes)
        position = self.position
        is_first, ends_unit = kind is RecordKind.SEGMENT, kind.is_boundary
        head = Head(
            segment.segment_id,
            position.sequence if is_first else position.sequence + 1,
            content.step,
            kind,
            FORMAT_VERSION,
            content.covered,
            len(description),
            payload_bytes,
            checksum_of(description),
            position.chain,
        )
        packed = pack_head(head)
        segment.write([*record.pending, *rest] if is_pending else rest, start)
        hit("log.before_commit")
        segment.write_head(packed, offset)  # commit point for a killed process
        hit("log.after_commit")
        after = position if is_first else Position(head.sequence, head.step, digest(packed), position.timeline)
        with self._lock:  # Once the lock is released, the sync thread may seal the segment.
            segment.used_bytes = end
            self.position, self._writing, record.is_open = after, None, False
            row = RecordRow(segment.ordinal, head.sequence, offset, end, packed)
            self.group.add_record(row, after if ends_unit else None)
        self.bytes_written += end - offset
        if record.stored_bytes and kind.is_step:
            self.tensor_bytes += record.stored_bytes
            self.tensor_records += 1
            self.tensor_layout = record.payload.layout
        if ends_unit and self._age_limit.is_exceeded():
            self._roll_old()
        return after

    def forget_definitions(self) -> None:
        """Make later records independent of earlier ones: layouts and bodies are stored again when they are used next."""
        self._definitions = SegmentDefinitions()

    # Segments.

    def roll(self) -> None:
        """Seal the open segment. The next record opens another one."""
        with self._lock:
            if self._segment is not None:
                self.group.add_sealing(self._segment, self.position)
                self._segment = None

    def _roll_old(self) -> None:
        """Seal the open segment because of its age."""
        with self._lock:
            if self._segment is not None:
                self._preallocator.note_old_segment(self._segment.used_bytes)
                self.roll()

    def _roll(self, room: int) -> None:
        """Seal the open segment because it is full, and open one with room for a record of `room` bytes."""
        hit("log.roll")
        with self._lock:
            if self._segment is not None:
                self._preallocator.note_full_segment(self._segment.used_bytes)
            self.roll()
        self._preallocator.fit_records()
        segment = self._preallocator.take(whole_mib(room + RECORD_SLACK_BYTES))
        self.forget_definitions()
        base = self.position
        with self._lock:  # The sync thread must not see the first record before its segment.
            try:
                self._write_first_record(segment, base)
            except BaseException:
                segment.close()  # The file is retired when the log is opened again.
                raise
            self._age_limit.segment_opened()
            segment.base = base
            self._segment = segment
            self.group.add_opened(segment)

    def _write_first_record(self, segment: SegmentFile, base: Position) -> None:
        body = {**self._segment_header, "ordinal": segment.ordinal, "timeline": base.timeline}
        self._writing = Record(NO_TENSORS, segment, self._choices)
        self.commit(self._writing, EncodedContent(RecordKind.SEGMENT, base.step, self.encoder.whole(body, None)))

    def _has_records(self) -> bool:
        """Return True if the open segment has records besides its first one."""
        return self._segment is not None and self.position.sequence > self._segment.base.sequence

    def _seal_old(self) -> None:
        """Seal the open segment if it is old. Runs on the sync thread, because the training thread may be in a long step."""
        self._age_limit.read_request()
        if self._age_limit.is_exceeded():
            self.close_held()
        with self._lock:
            if not self._is_writing() and self._has_records() and self._age_limit.is_exceeded():
                self._roll_old()

    def seal_now(self) -> None:
        """Seal the open segment unless a record is being written. Any thread may call this."""
        self.close_held()
        with self._lock:
            if not self._is_writing() and self._has_records():
                self.roll()

    # The end.

    def close(self, *, truncates: bool = True) -> None:
        """Seal the open segment, sync, and stop the threads.

        Args:
            truncates: give back the unused part of the last segment, and files that are kept for recycling; False if logging
                will continue and may need them.
        """
        self.abort()
        self._preallocator.stop()
        if truncates:
            self._preallocator.delete_retired()
        with self._lock:  # The thread must not take the last segment without knowing that the log is being closed.
            self.roll()
            self.group.request_stop(truncates=truncates)
        self.group.join()
        if self._thread is not None:
            self._thread.stop()
        failure = self.group.failure
        if failure is not None:
            raise LogUnavailable(error_text(failure)) from failure
