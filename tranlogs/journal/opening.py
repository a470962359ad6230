"""Opening a journal: where its parts lie, its catalog, what a crash left half done, and where a run must not lie."""

from __future__ import annotations

import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ..base.atomic_files import sync_folder
from ..base.errors import CannotRead, CorruptCatalog, CorruptRecord, LogUnavailable, NotARun, UsageError
from ..catalog import CATALOG_NAME, Catalog, RunRow, SegmentRow, Tables, TimelineRow, segment_key, timeline_key
from ..checkpoints.derived import delete_derived
from ..checkpoints.folder import TEMPORARY
from ..log.index import INDEX_NAME, IndexedRecord, LogIndex, delete_index
from ..log.reader import SegmentReader
from ..log.record import Location
from ..log.scanner import scan
from ..log.segment_file import was_written
from ..rebuild import is_superseded, list_files, read_files, read_segment, rebuild_catalog
from ..retention.prune import delete_retired
from .process.writer_lock import read_owner

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JournalPaths:
    """Where a journal's parts lie."""

    folder: Path

    @classmethod
    def of(cls, run: str | os.PathLike[str], rank: int = 0) -> JournalPaths:
        return cls(Path(run) / f"rank{rank}")

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def require(self) -> JournalPaths:
        """Itself, if a journal is there.

        Raises:
            NotARun: none is.
        """
        if not self.log.is_dir() or not self.checkpoints.is_dir():
            raise NotARun(self.folder.parent)
        return self


def open_catalog(paths: JournalPaths, rank: int, framework: str, notes: list[str]) -> tuple[Catalog, RunRow]:
    """Open a journal's catalog for writing, rebuilt if it is damaged; what was done is appended to `notes`."""
    has_data = bool(list_files(paths.log, "*.seg") or list_files(paths.checkpoints, "step-*"))
    try:
        if has_data and not (paths.folder / CATALOG_NAME).exists():
            raise CorruptCatalog(paths.folder / CATALOG_NAME, "the catalog is missing")
        catalog = Catalog.open(paths.folder, writable=True)
        try:
            catalog.read(Tables.check)
            if has_data and catalog.run() is None:
                raise CorruptCatalog(catalog.path, "the run's row is missing")
        except BaseException:
            catalog.close()
            raise
    except CorruptCatalog as error:
        notes.append(str(error))
        notes += rebuild_catalog(paths.folder)
        catalog = Catalog.open(paths.folder, writable=True)
    try:
        row = catalog.run()
        if row is None:
            row = RunRow(uuid.uuid4().hex, rank, time.time(), framework=framework)
            with catalog.transaction() as tables:
                tables.put("run", row)
                tables.put(timeline_key(1), TimelineRow(1, created_at=row.created_at))
        if framework and row.framework and row.framework != framework:  # compaction asks for none
            raise UsageError(
                f"{paths.folder.parent} holds a run of {row.framework}, and this is {framework}: give another folder"
            )
        notes += tidy(paths, catalog)
        return catalog, row
    except BaseException:
        catalog.close()
        raise


def tidy(paths: JournalPaths, catalog: Catalog) -> list[str]:
    """Finish what a crash left half done: temporary files, unlisted or half-deleted checkpoints and segments."""
    for left in paths.checkpoints.glob(TEMPORARY + "*"):
        shutil.rmtree(left, ignore_errors=True)
    if not is_watched(paths.folder):
        delete_derived(paths.checkpoints)
    delete_retired(catalog, paths.checkpoints)
    listed = {row.name for row in catalog.checkpoints()} | {row.file for row in catalog.segments()}
    found, checkpoints = read_files(paths.folder, listed), catalog.checkpoints()
    known_timelines = {row.number for row in catalog.timelines()}
    if found.checkpoints or found.segments or found.timelines.keys() - known_timelines:  # else a full disk does no harm
        with catalog.transaction() as tables:
            if found.checkpoints:
                sync_folder(paths.checkpoints)  # the crash may have come before their names were kept
            for row in found.checkpoints:  # published, but the crash came before the catalog knew, or the disk was full
                row = replace(row, state="retired") if is_superseded(row, checkpoints) else row
                tables.put(f"checkpoint/{row.name}", row)
            for segment in found.segments:
                tables.put(segment_key(segment.ordinal), segment)
            for number, timeline in found.timelines.items():
                if number not in known_timelines:
                    tables.put(timeline_key(number), timeline)
    known = listed | found.unreadable | {segment.file for segment in found.segments}
    for path in sorted(paths.log.iterdir()):
        if path.name not in known and path.name not in (INDEX_NAME, f"{INDEX_NAME}-lock"):
            path.unlink()  # a leftover, or a segment prepared or reset and never written
    return [f"{segment.file} was not in the catalog and was added" for segment in found.segments] + found.notes


def is_watched(folder: Path) -> bool:
    """Whether a monitor watches the journal now."""
    monitor = read_owner(folder, "monitor")
    return monitor is not None and monitor.is_alive


def seal_abandoned_segments(
    paths: JournalPaths, catalog: Catalog, *, sync: bool, is_abandoned: Callable[[], bool] = lambda: True
) -> int:
    """Seal what a dead process left open, so that this one writes into fresh files only; gives how many were left.

    `is_abandoned` is asked inside each transaction: if another process has begun to write the journal, the rest is left to that
    process. A writer takes its lock before its first transaction, so that the answer holds until our transaction is over.
    """
    newest = max((row.number for row in catalog.timelines()), default=1)
    left = [row for row in catalog.segments() if row.state in ("ready", "open")]
    for done, row in enumerate(left):
        path = paths.log / row.file
        is_there = path.exists()
        try:
            found = read_segment(path, row.timeline or newest) if is_there else None
            is_empty = row.state == "ready" and found is None and is_there and not was_written(path, row.number)
        except (CannotRead, OSError) as error:  # what recovery has read must not be taken for nothing
            raise LogUnavailable(f"{path}: {error}") from error
        if found is not None and sync:
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(fd)  # what recovery has read must not be lost by a power cut now
            finally:
                os.close(fd)
        with catalog.transaction() as tables:
            if not is_abandoned():
                return done
            if tables.get(segment_key(row.ordinal), SegmentRow) != row:  # a writer came, and went, since it was read
                continue
            if found is not None:
                tables.put(segment_key(row.ordinal), replace(found, state="sealed", created_at=row.created_at))
            elif not is_there:
                tables.delete(segment_key(row.ordinal))
            elif is_empty:
                tables.put(segment_key(row.ordinal), replace(row, state="retired"))
            else:  # it was written, and nothing of it can be read: kept until a checkpoint makes it needless
                tables.put(segment_key(row.ordinal), replace(row, state="sealed", last_sequence=row.base_sequence))
    return len(left)


def open_index(paths: JournalPaths, catalog: Catalog, run_id: str) -> LogIndex:
    """Open the log's index for writing and add what segments hold and it does not; a damaged one is made anew.

    Raises:
        LogUnavailable: it cannot be written.
    """
    try:
        try:
            return _open_complete_index(paths, catalog, run_id)
        except CorruptCatalog as error:  # its file, or one of its records
            _log.info("%s; it is made anew from the segments", error)
            delete_index(paths.log)
            return _open_complete_index(paths, catalog, run_id)
    except CannotRead as error:  # file handles or memory are used up: logging waits until that is over
        raise LogUnavailable(str(error)) from error


def _open_complete_index(paths: JournalPaths, catalog: Catalog, run_id: str) -> LogIndex:
    index = LogIndex.open(paths.log, run_id, writable=True)
    try:
        for row in catalog.segments():
            if row.state in ("open", "sealed"):
                _complete(index, paths.log / row.file, row)
    except BaseException:
        index.close()
        raise
    return index


def _complete(index: LogIndex, path: Path, row: SegmentRow) -> None:
    """Add the records of a segment that the index does not have: a crash came before they were added, or it is a new index."""
    known = index.newest(row.number)
    if row.state == "sealed" and known is not None and known.head.sequence >= row.last_sequence:
        return
    try:
        found = scan(path, row.number, start=known.end if known is not None else 0, last_sequence=row.last_sequence or None)
        with SegmentReader(path) as reader:
            index.add(list(_indexed(reader, found)))
    except (CorruptRecord, CannotRead, OSError) as error:  # recovery and `tranlogs verify` say what is wrong with it
        _log.debug("%s: it could not be added to the index: %s", path, error)


def _indexed(reader: SegmentReader, locations: Iterable[Location]) -> Iterator[IndexedRecord]:
    for location in locations:
        with suppress(CorruptRecord):
            head = location.head
            raw, description = reader.raw(location)
            yield IndexedRecord(head.segment_id, head.sequence, head.step, location.offset, raw, description)


def refuse_inner_folder(run: Path) -> None:
    """A run within a journal would be a second one, and the first one's steps would not be seen.

    Raises:
        UsageError: the folder is a journal.
    """
    if (run / CATALOG_NAME).exists():
        raise UsageError(f"{run} is the journal of one rank, not a run: give {run.parent}, the folder above it")


_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "lustre", "9p", "ceph", "gpfs", "beegfs", "glusterfs", "afs")


def refuse_network_file_system(folder: Path) -> list[str]:
    """A memory map over a network file system loses what LMDB promises.

    Raises:
        UsageError: the folder lies on one.
    """
    kind = file_system_of(folder)
    if kind in _NETWORK or kind.startswith("fuse"):
        raise UsageError(
            f"{folder} lies on a network file system ({kind}), where a memory-mapped log can lose steps. "
            "Keep the run on a local disk and ship it to a store"
        )
    if kind == "tmpfs":
        return ["the run lies in memory (tmpfs): it survives the process, not the machine"]
    return []


def is_in_memory(folder: Path) -> bool:
    """Whether the machine's end takes the folder: it lies on a tmpfs."""
    return file_system_of(folder) == "tmpfs"


def file_system_of(folder: Path) -> str:
    """Type of the file system under a folder ("" where the system does not say)."""
    best, found = "", ""
    path = os.path.realpath(folder)
    try:
        with open("/proc/self/mountinfo") as mounts:
            for line in mounts:
                left, _, right = line.partition(" - ")
                point = left.split()[4].replace("\\040", " ")
                inside = path == point or path.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best):
                    best, found = point, right.split()[0]
    except OSError:
        return ""
    return found
