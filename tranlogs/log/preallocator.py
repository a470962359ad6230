"""Preallocation and size of segments. A thread prepares the next segment, so that the training thread does not wait for one.

While the disk has plenty of space, a new segment gets its blocks in small steps, right before the records that need them: a
young run takes little more of the disk than its records. On another disk the blocks of the open segment and of the next one
are allocated ahead, so that the log goes on, once the disk is full, until a checkpoint has made room.

The thread recycles a retired file if there is one, and creates a new file otherwise. It never writes to the catalog: the sync
thread lists a prepared segment as `ready`. A segment may be written to before that. After a crash the next opening finds such a
file (`opening.clean_up`).
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from ..base.atomic_files import free_bytes, is_disk_full
from ..base.clock import Clock
from ..base.config import (
    MIB,
    SEGMENT_BYTES_GROWN_MAX,
    SEGMENT_BYTES_MIN,
    SEGMENT_RECORDS_WANTED,
    SEGMENT_STEP_BYTES,
    SPACE_PLENTY_BYTES,
    SPARE_FILES_MAX,
    JournalConfig,
)
from ..base.errors import LogUnavailable, error_text
from ..base.failpoints import hit
from ..base.threads import WaitableLock, start
from ..catalog import Catalog, SegmentRow, Tables, segment_key
from . import segment_file as files

RowChange = Callable[[Tables], None]  # a change of segment rows, made by the sync thread in its next transaction


class Preallocator:
    """A thread that keeps one segment ready. `take` returns it and lets the thread prepare the next one.

    Args:
        change: hands a change of segment rows to the sync thread.
        space_to_leave: returns the number of bytes that a new segment file must leave free. Called in the thread.
        on_full: called in the thread when the disk has no space for a segment.
        config: sizes of segments. A young run has small ones, so that a short run takes little more of the disk than its
            records: the next ones have room for a quarter of what was logged so far.

    Attributes:
        size: size of the segments that are prepared from now on, in bytes.
        largest_record: bytes of the largest record so far. The log updates it.
    """

    def __init__(
        self,
        folder: Path,
        catalog: Catalog,
        change: Callable[[RowChange], None],
        clock: Clock,
        config: JournalConfig,
        space_to_leave: Callable[[], int] = lambda: 0,
        on_full: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder, self._catalog, self._change, self._clock = folder, catalog, change, clock
        self._space_to_leave, self._on_full = space_to_leave, on_full
        self._size_max = config.segment_bytes
        self.largest_record = self._logged_bytes = 0
        self._changed = WaitableLock()
        self._ready: files.SegmentFile | None = None
        self._failure: BaseException | None = None
        self._wanted, self._stopped = True, False
        self._taken: files.SegmentFile | None = None
        self._is_young, self._plenty_bytes = True, SPACE_PLENTY_BYTES
        self._live_max = 0  # segments that were in use before a checkpoint last retired some
        rows = catalog.segments()
        self.size = config.segment_bytes
        if config.segment_bytes_first is not None:  # A run that goes on has larger ones, and spare files of their size.
            self.size = min(self.size, max([config.segment_bytes_first, *(row.size for row in rows)]))
        self._known = {row.ordinal for row in rows if row.state == "retired"}
        named = (files.parse_segment_name(name) for name in os.listdir(folder))  # A file may be missing in the catalog.
        self._ordinal = max([0, *(row.ordinal for row in rows), *(found[0] for found in named if found is not None)])
        self._thread = threading.Thread(target=self._work, name="tranlogs-prepare", daemon=True)
        try:
            start(self._thread)
        except BaseException:  # The start failed, or Ctrl-C came during it: no owner will stop the thread later.
            with suppress(RuntimeError):  # The thread was not started.
                self.stop()
            raise

    def take(self, bytes_min: int = 0) -> files.SegmentFile:
        """Return the prepared segment; wait for it if necessary.

        Args:
            bytes_min: the smallest size that will do; a smaller segment is discarded.

        Raises:
            LogUnavailable: no segment could be prepared.
        """
        with self._changed:
            self.size = max(self.size, bytes_min)
            if self._failure is not None:  # The attempt may be long ago, and the disk may have space by now.
                self._failure = None
                self._request_next()
            while True:
                while self._ready is None and self._failure is None and not self._stopped:
                    self._changed.wait()
                failure, self._failure = self._failure, None
                if self._stopped or failure is not None:
                    self._request_next()
                    raise LogUnavailable(error_text(failure) if failure else "the log is closed") from failure
                self._taken, self._ready = self._ready, None
                assert self._taken is not None
                self._request_next()
                if self._taken.size >= bytes_min:
                    return self._taken
                self._discard(self._taken)

    def note_full_segment(self, used_bytes: int) -> None:
        """Enlarge the next segments, up to their greatest size or what several records need, because one became full."""
        self._logged_bytes += used_bytes
        size_max = max(self._size_max, self._room_for(SEGMENT_RECORDS_WANTED))
        self.size = max(self.size, min(whole_mib(self._logged_bytes // 4), size_max))

    def note_old_segment(self, used_bytes: int) -> None:
        """Shrink the next segments, because one was old when only `used_bytes` of it were used."""
        self.size = min(max(whole_mib(2 * used_bytes), SEGMENT_BYTES_MIN), self._size_max)

    def fit_records(self) -> None:
        """Make the next segments large enough for two of the largest records."""
        self.size = max(self.size, self._room_for(min(2, SEGMENT_RECORDS_WANTED)))

    def _room_for(self, records: int) -> int:
        return whole_mib(min(self.largest_record * records, SEGMENT_BYTES_GROWN_MAX))

    def allocate(self, segment: files.SegmentFile, end: int) -> None:
        """Allocate the blocks of a record that ends at `end` in the open segment, and blocks behind it.

        Raises:
            OSError: the disk is full.
        """
        if end <= segment.allocated:
            return
        if self._allocates_late():
            segment.allocate(end, SEGMENT_STEP_BYTES)
            return
        with self._changed:
            if self._ready is not None and self._ready.allocated < self._ready.size:
                self._discard(self._ready)  # The next one has all its blocks.
                self._ready = None
                self._request_next()
        segment.allocate(end, segment.size)

    def _allocates_late(self) -> bool:
        """Return True if no file was recycled yet, and a full disk is far away."""
        return self._is_young and free_bytes(self._folder) >= self._plenty_bytes

    def _request_next(self) -> None:
        self._wanted = True
        self._changed.notify_all()

    def stop(self) -> None:
        """End the thread, and delete the segment that is ready."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()
        if self._ready is not None:
            self._discard(self._ready)
            self._ready = None

    def delete_retired(self) -> None:
        """Delete the files that are kept for recycling, at the end of a run. What cannot be deleted stays for the next one."""
        with suppress(LogUnavailable, OSError):
            for row in self._retired():
                self._delete(row)

    def _discard(self, segment: files.SegmentFile) -> None:
        segment.close()
        with suppress(OSError):  # The next opening deletes a file that was not written, and a row without a file.
            segment.path.unlink(missing_ok=True)
        self._change(partial(Tables.delete, key=segment_key(segment.ordinal)))

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._stopped or (self._wanted and self._ready is None and self._failure is None)):
                    self._changed.wait()
                if self._stopped:
                    return
                self._wanted = False
                size = self.size
            try:
                made = self._prepare(size)
                with self._changed:
                    self._ready = made
                    self._changed.notify_all()
            except Exception as error:  # `take` raises it on the training thread.
                if is_disk_full(error):
                    self._on_full()
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()

    def _prepare(self, size: int) -> files.SegmentFile:
        self._ordinal += 1
        segment_id = files.new_segment_id()
        path = self._folder / files.segment_name(self._ordinal, segment_id)
        used, made = self._recycled(path, segment_id, size)
        self._is_young = self._is_young and used is None
        if made is None:
            self._check_space(path, size)
            allocated = min(size, SEGMENT_STEP_BYTES) if self._allocates_late() else size
            made = files.create(path, self._ordinal, segment_id, size, allocated)
        row = SegmentRow(self._ordinal, f"{segment_id:016x}", path.name, made.size, "ready", created_at=self._clock.now())
        self._change(partial(Tables.put, key=segment_key(row.ordinal), row=row))
        if used is not None:
            self._change(partial(Tables.delete, key=segment_key(used.ordinal)))
        try:
            self._delete_surplus(size)
        except (LogUnavailable, OSError):
            self._discard(made)
            raise
        return made

    def _check_space(self, path: Path, size: int) -> None:
        """Check that a new segment file, and what the open one has not allocated yet, leave enough space free."""
        kept, taken = self._space_to_leave(), self._taken
        self._plenty_bytes = SPACE_PLENTY_BYTES + 2 * size + kept
        open_bytes = taken.size - taken.allocated if taken is not None else 0
        if kept and free_bytes(self._folder) < size + open_bytes + kept:
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise LogUnavailable(
                f"{path}: cannot create a segment of {size} bytes and leave {kept} bytes free for a checkpoint: {full}"
            ) from full

    def _retired(self) -> list[SegmentRow]:
        return [row for row in self._catalog.segments() if row.state == "retired"]

    def _recycled(self, path: Path, segment_id: int, size: int) -> tuple[SegmentRow | None, files.SegmentFile | None]:
        """Recycle a retired file of the right size that no process reads.

        Returns:
            The catalog row of the retired segment, which has not been deleted yet, and the new segment. (None, None) if there
            is no such file.
        """
        for row in self._retired():
            if row.size == size and (self._folder / row.file).exists():
                made = files.recycle(self._folder / row.file, path, self._ordinal, segment_id, size)
                if made is not None:
                    return row, made
        return None, None

    def _delete_surplus(self, size: int) -> None:
        """Delete retired files of other sizes, and retired files of this size beyond the number that is needed soon.

        A checkpoint retires the segments of a whole interval at once, and the next interval needs as many. So the number of
        files that are kept, in use or retired, is the number that was in use before the checkpoint. Writing to a new file
        takes several times as long as writing to a recycled one, and the disk may be full later.
        """
        rows = self._catalog.segments()
        retired = [row for row in rows if row.state == "retired"]
        live = len(rows) - len(retired)
        known, self._known = self._known, {row.ordinal for row in retired}
        if fresh := self._known - known:
            self._live_max = live + len(fresh)
        spares_max = max(SPARE_FILES_MAX, self._live_max - live)
        spares = [row for row in retired if row.size == size and (self._folder / row.file).exists()]
        for row in retired:
            if row not in spares[-spares_max:]:
                self._delete(row)

    def _delete(self, row: SegmentRow) -> None:
        assert row.state == "retired", "a segment is retired in the catalog before its file is deleted"
        hit("log.unlink")
        (self._folder / row.file).unlink(missing_ok=True)  # A process that reads the file keeps its bytes.
        self._change(partial(Tables.delete, key=segment_key(row.ordinal)))


def whole_mib(nbytes: int) -> int:
    """Return a number of bytes rounded up to a whole MiB."""
    return -(-nbytes // MIB) * MIB
