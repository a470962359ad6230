"""The write-ahead log of one journal: entries go into the open segment, segments roll, a thread syncs behind.

Watermarks, as sequence numbers: `committed` survives the process, `synced` also power loss. A failure in any thread
latches: from then on `begin` raises LogUnavailable, and the owner decides once (journal/journal.py).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..catalog import Catalog, SegmentRow, Watermarks, segment_key
from ..clock import Clock
from ..codec import tree
from ..codec.entry import HEAD_BYTES_MIN, EntryKind, pack_head
from ..config import (
    CATALOG_SECONDS,
    GROUP_BYTES_MAX,
    MIB,
    SEGMENT_BYTES_GROWN_MAX,
    SEGMENT_BYTES_MIN,
    SEGMENT_RECORDS_WANTED,
    TINY_BYTES_MAX,
    JournalConfig,
)
from ..errors import LogUnavailable, in_words
from ..failpoints import hit
from ..threads import WaitableLock, start
from ..types import AnyArray
from .entry_writer import Definitions, EntryWriter, Position, Scalars, Tensor, encode_body, frame_count
from .lease import SealLease
from .pipeline import SegmentPipeline
from .segment import LMDB_ERRORS, Segment, bytes_needed


class WriteAheadLog:
    """Appends entries after a position. One thread appends; others sync, seal and prepare.

    Args:
        folder: where the segment files lie.
        catalog: the journal's catalog, open for writing.
        config: durability, sizes.
        clock: for times in the catalog.
        position: where the chain goes on.
        describe: what the first entry of each segment says (run, rank, environment).
        on_sealed: called, in a background thread, after a segment is sealed in the catalog.
        counts: False where the checkpoint at `position` is yet to be published (a log that goes on behind a gap): the
            owner sets it then, and no watermark is written before.
        keep_free, on_full: see `SegmentPipeline`.
    """

    def __init__(self, folder: Path, catalog: Catalog, config: JournalConfig, clock: Clock, position: Position,
                 describe: dict[str, Any], on_sealed: Callable[[], None] = lambda: None, *,
                 counts: bool = True, keep_free: Callable[[], int] = lambda: 0,
                 on_full: Callable[[], None] = lambda: None) -> None:  # fmt: skip
        self._folder, self._catalog, self._config, self._clock = folder, catalog, config, clock
        self._describe, self._on_sealed, self.counts = describe, on_sealed, counts
        self.position = position
        self.boundary = position  # the newest committed boundary
        self.synced = position  # the newest boundary known to survive power loss
        self.definitions = Definitions()
        self.group_buffer = np.empty(GROUP_BYTES_MAX + HEAD_BYTES_MIN, np.uint8)
        self.bytes_written = 0
        self.failure: BaseException | None = None
        self._syncs = config.durability == "machine"
        self._segment: Segment | None = None
        self._segment_since = 0.0
        self._segment_base = position
        self._lease = SealLease(catalog, clock, config.segment_age_seconds)
        self._writing: EntryWriter | None = None
        self._largest = 0
        self._wake = WaitableLock()
        self._sealing: list[tuple[Segment, Position]] = []
        self._opened: list[tuple[Segment, Position]] = []
        self._stopped = False
        self._catalog_at = 0.0
        self._pipeline = SegmentPipeline(folder, catalog, clock, config.segment_bytes,
                                         populates_recycled=config.durability == "process",
                                         keep_free=keep_free, on_full=on_full)  # fmt: skip
        self._thread = threading.Thread(target=self._work, name="tranlogs-sync", daemon=True)
        try:
            start(self._thread)
        except BaseException:  # refused, or Ctrl-C while it waits for the thread: nobody will close this log
            with self._wake:
                self._stopped = True
                self._wake.notify_all()
            self._pipeline.stop()
            raise

    # Appending: the training thread, or the writer thread where records are handed over.

    def begin(self, nbytes: int, frames: int) -> EntryWriter:
        """Start an entry of at most `nbytes` of tensors in `frames` frames, with a body of ordinary size.

        Raises:
            LogUnavailable: the log has failed, or no segment is to be had.
        """
        if self.failure is not None:
            raise LogUnavailable(in_words(self.failure)) from self.failure
        self.abort()
        room = nbytes + frames * 512 + MIB
        values = min(frames, nbytes // TINY_BYTES_MAX + 2) + 4
        self._largest = max(self._largest, room)
        while (writing := self._begun(room, values)) is None:
            self._roll(room, values)
        return writing

    def abort(self) -> None:
        """Forget the entry that is being written, if one is."""
        if self._writing is not None:
            self._writing.abort()

    def _begun(self, room: int, values: int) -> EntryWriter | None:
        """An entry in the open segment; None where it has no room. Between entries the thread behind may seal an old one."""
        with self._wake:
            segment = self._segment
            try:
                if segment is None or not segment.has_room(room, values):
                    return None
                self._writing = EntryWriter(self, segment, self.position.sequence + 1)
            except LMDB_ERRORS as error:
                raise LogUnavailable(f"{segment.path if segment else self._folder}: {error}") from error
            return self._writing

    def append(self, kind: EntryKind, step: int, tensors: list[Tensor], body: Any, *, adapt: tree.Adapt | None = None,
               scalars: Scalars | None = None) -> Position:  # fmt: skip
        """Write a whole entry at once."""
        far: list[tuple[str, AnyArray]] = []
        blob = encode_body(body, tensors, adapt, far)
        return self.append_encoded(kind, step, tensors, blob, far, scalars)

    def append_encoded(self, kind: EntryKind, step: int, tensors: list[Tensor], blob: bytes, far: list[tuple[str, AnyArray]],
                       scalars: Scalars | None = None) -> Position:  # fmt: skip
        """`append` for a body that `encode_body` has encoded."""
        contents = [content for _, content in tensors] + [array for _, array in far]
        nbytes = sum(content.nbytes for content in contents if content is not None) + len(blob)
        writer = self.begin(nbytes, sum(frame_count(content) for content in contents))
        try:
            for name, content in tensors:
                writer.add(name, content)
            return writer.commit_encoded(kind, step, blob, far, scalars)
        except BaseException:
            writer.abort()
            raise

    def roll(self) -> None:
        """Seal the open segment (the next entry opens another one)."""
        with self._wake:
            if self._segment is not None:
                self._sealing.append((self._segment, self.position))
                self._segment = None
                self._wake.notify_all()

    def _roll_early(self) -> None:
        """Seal the open segment because of its age; the next ones are as large as is needed for that time."""
        with self._wake:
            if self._segment is not None:
                fitting = max(_whole_mib(2 * self._segment.used_bytes), SEGMENT_BYTES_MIN)
                self._pipeline.size = min(fitting, self._config.segment_bytes)
                self.roll()

    def _roll(self, room: int, values: int) -> None:
        hit("wal.roll")
        with self._wake:
            if self._segment is not None:  # it is full: after early ones, they may be larger again
                self._pipeline.size = max(self._pipeline.size, min(2 * self._pipeline.size, self._config.segment_bytes))
            self.roll()
        wanted = min(self._largest * SEGMENT_RECORDS_WANTED, SEGMENT_BYTES_GROWN_MAX)
        self._pipeline.size = max(self._pipeline.size, _whole_mib(bytes_needed(wanted, values * SEGMENT_RECORDS_WANTED)))
        segment = self._pipeline.take(_whole_mib(bytes_needed(room, values + 8)))
        self.definitions.forget()
        self.definitions.next_number = 0
        base = self.position
        try:
            self._write_first_entry(segment, base)
        except BaseException:
            segment.close()  # its file is retired, and may be reused, when the log is opened again
            raise
        with self._wake:
            self._segment, self._segment_since, self._segment_base = segment, self._clock.monotonic(), base
            self._opened.append((segment, base))
            self._wake.notify_all()

    def _write_first_entry(self, segment: Segment, base: Position) -> None:
        body = {**self._describe, "ordinal": segment.ordinal, "timeline": base.timeline, "page_bytes": segment.page_bytes}
        payload = tree.encode({"specs": [], "frames": b"", "named": 0, "body": tree.encode(body)})
        head = pack_head(segment.segment_id, base.sequence, base.step, EntryKind.SEGMENT, payload, base.chain)
        try:
            txn = segment.begin(base.sequence)
            txn.put(np.frombuffer((head + payload).ljust(HEAD_BYTES_MIN, b"\0"), np.uint8))
            txn.commit()
        except LMDB_ERRORS as error:
            raise LogUnavailable(f"{segment.path}: {error}") from error

    def _entry_written(self, writer: EntryWriter, kind: EntryKind, after: Position) -> Position:
        assert self._writing is writer
        with self._wake:  # from here on the thread behind may seal the segment
            self.position, self._writing = after, None
        self.bytes_written += writer.nbytes
        if kind == EntryKind.BOUNDARY:
            self.boundary = after
            if self._is_segment_old():
                self._roll_early()
            if self._syncs:
                with self._wake:
                    self._wake.notify_all()
        return after

    def _entry_aborted(self, writer: EntryWriter) -> None:
        if self._writing is writer:
            self._writing = None

    # Behind the training thread.

    def _work(self) -> None:
        while True:
            with self._wake:
                while not (self._stopped or self._sealing or self._opened or self._must_sync()):
                    self._wake.wait(CATALOG_SECONDS)
                    if self._is_catalog_due() or self._is_unsealed():
                        break
                opened, self._opened = self._opened, []
                sealing, self._sealing = self._sealing, []
                current, target, stopped = self._segment, self.boundary, self._stopped
            try:
                self._settle(opened, sealing, current, target)
                self._seal_old()
            except Exception as error:
                self.failure = self.failure or error
                self._discard_failed(sealing)
                if not stopped:
                    self._wait_for_stop()
                return
            if stopped:
                return

    def _must_sync(self) -> bool:
        return self._syncs and self.synced.sequence < self.boundary.sequence

    def _is_catalog_due(self) -> bool:
        late = self._clock.monotonic() - self._catalog_at > CATALOG_SECONDS
        return self.counts and late and self._catalog_step < self.boundary.step

    _catalog_step = -1

    def _is_unsealed(self) -> bool:
        """Whether the open segment has entries."""
        return self._segment is not None and self.position.sequence > self._segment_base.sequence

    def _is_segment_old(self) -> bool:
        age = self._lease.age_seconds
        return age is not None and self._clock.monotonic() - self._segment_since > age

    def _seal_old(self) -> None:
        """Seal a segment that is old although the training thread writes nothing now: it may be busy for long."""
        self._lease.look()
        with self._wake:
            if self._writing is None and self._is_unsealed() and self._is_segment_old():
                self._roll_early()

    def _settle(self, opened: list[tuple[Segment, Position]], sealing: list[tuple[Segment, Position]],
                current: Segment | None, target: Position) -> None:  # fmt: skip
        for segment, base in opened:
            self._record_opened(segment, base)
        syncs = self._syncs
        for segment, _ in sealing:
            if syncs:
                segment.sync()
        if current is not None and syncs and self.synced.sequence < target.sequence:
            current.sync()
        if syncs:
            self.synced = target
        for segment, last in sealing:
            self._record_sealed(segment, last)
        if sealing:
            self._on_sealed()
        if self._is_catalog_due() or (self.counts and self._stopped):
            self._write_watermarks(target)

    def _write_watermarks(self, target: Position) -> None:
        self._catalog_at, self._catalog_step = self._clock.monotonic(), target.step
        with self._catalog.transaction() as tables:
            now = tables.get("watermarks", Watermarks) or Watermarks()
            synced = self.synced.step if self._syncs else now.synced
            tables.put("watermarks", replace(now, committed=target.step, synced=min(synced, target.step), at=self._clock.now()))

    def _record_opened(self, segment: Segment, base: Position) -> None:
        with self._catalog.transaction() as tables:
            row = tables.get(segment_key(segment.ordinal), SegmentRow)
            assert row is not None
            tables.put(segment_key(segment.ordinal), replace(
                row, state="open", timeline=base.timeline, base_sequence=base.sequence, base_step=base.step))  # fmt: skip

    def _record_sealed(self, segment: Segment, last: Position) -> None:
        hit("wal.seal")
        used = segment.used_bytes
        segment.close()  # first: once the catalog says "sealed", the file may be retired and reused by other threads
        with self._catalog.transaction() as tables:
            row = tables.get(segment_key(segment.ordinal), SegmentRow)
            assert row is not None
            tables.put(segment_key(segment.ordinal), replace(
                row, state="sealed", last_sequence=last.sequence, last_step=last.step, used_bytes=used,
                sealed_at=self._clock.now()))  # fmt: skip

    def _discard_failed(self, sealing: list[tuple[Segment, Position]]) -> None:
        for segment, _ in sealing:
            segment.close()

    def _wait_for_stop(self) -> None:
        with self._wake:
            while not self._stopped:
                self._wake.wait()

    @property
    def is_writing(self) -> bool:
        """Whether an entry was begun and is not finished."""
        return self._writing is not None

    def demand_sync(self) -> None:
        """Everything that is committed, and what follows, is to survive power loss, whatever the settings say. From any thread.

        Raises:
            OSError: the disk fails.
        """
        if self._syncs:
            return
        for path in self._folder.glob("*.seg"):
            with suppress(FileNotFoundError):  # recycled meanwhile
                fd = os.open(path, os.O_RDONLY)
                try:
                    os.fdatasync(fd)
                finally:
                    os.close(fd)
        with self._wake:
            self._syncs = True
            self._wake.notify_all()

    def seal_now(self) -> None:
        """Seal the open segment unless an entry is being written. From any thread."""
        with self._wake:
            if self._writing is None and self._is_unsealed():
                self.roll()

    def wait_synced(self, timeout: float = 60.0) -> bool:
        """Wait until everything committed is synced; False after `timeout` seconds or a failure."""
        end = self._clock.monotonic() + timeout
        while self._must_sync() and self.failure is None:
            with self._wake:
                self._wake.notify_all()
                self._wake.wait(0.002)
            if self._clock.monotonic() > end:
                return False
        return self.failure is None

    def close(self) -> None:
        """Seal the open segment, sync, stop the threads. Raises LogUnavailable if that was not possible."""
        self.abort()
        with self._wake:
            if self._segment is not None:
                self._sealing.append((self._segment, self.position))
                self._segment = None
            self._stopped = True
            self._wake.notify_all()
        self._thread.join()
        try:
            self._pipeline.stop()
        except LogUnavailable as error:
            self.failure = self.failure or error
        if self.failure is not None:
            self._discard_failed(self._sealing)
            raise LogUnavailable(in_words(self.failure)) from self.failure


def _whole_mib(nbytes: int) -> int:
    return -(-nbytes // MIB) * MIB
