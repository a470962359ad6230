"""Open a journal for writing: its folders, its lock and its catalog. Finish operations that a crash interrupted."""

from __future__ import annotations

import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..base.atomic_files import make_folder, sync_folder
from ..base.errors import CannotRead, CorruptCatalog, LogUnavailable, NotARun, UsageError
from ..catalog import CATALOG_NAME, Catalog, RunRow, SegmentRow, Tables, TimelineRow, segment_key, timeline_key
from ..checkpoints.derived import delete_derived
from ..checkpoints.folder import TEMPORARY
from ..log.index import INDEX_NAME
from ..log.record import Position
from ..log.segments.segment_file import was_written
from ..rebuild import is_superseded, list_files, read_files, read_segment, rebuild_catalog
from ..retention.prune import delete_retired
from .ownership.takeover import take_lock
from .ownership.writer_lock import OwnerLock, read_owner

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JournalPaths:
    """The folders of one journal.

    Attributes:
        folder: `RUN/rank<R>`.
    """

    folder: Path

    @classmethod
    def of(cls, run: str | os.PathLike[str], rank: int = 0) -> JournalPaths:
        """Return the folders of a rank's journal in a run."""
        return cls(Path(run) / f"rank{rank}")

    @property
    def log(self) -> Path:
        """The folder of the log's segments and its index."""
        return self.folder / "log"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.folder / "checkpoints"

    def require(self) -> JournalPaths:
        """Return these paths if a journal is there.

        Raises:
            NotARun: there is no journal.
        """
        if not self.log.is_dir() or not self.checkpoints.is_dir():
            raise NotARun(self.folder.parent)
        return self


@dataclass(frozen=True, slots=True)
class OpenedJournal:
    """A journal that this process has opened for writing.

    Attributes:
        paths: its folders.
        lock: held by this process.
        catalog: open for writing.
        run: row of the run in the catalog.
        environment: what rounding depends on. Kept by reference: an integration fills it later.
        notes: what had to be repaired when the journal was opened.
    """

    paths: JournalPaths
    lock: OwnerLock
    catalog: Catalog
    run: RunRow
    environment: dict[str, Any]
    notes: list[str]

    @property
    def origin(self) -> Position:
        """The position before the first record. Its chain comes from the run's id, so that no other run's file fits."""
        return Position(chain=int(self.run.run_id[:16], 16))

    def describe(self, position: Position) -> dict[str, Any]:
        """Return the description of the run for segments and checkpoints that continue at a position."""
        timelines = {row.number: row for row in self.catalog.timelines()}
        line = timelines.get(position.timeline, TimelineRow(position.timeline))
        return {
            "run_id": self.run.run_id,
            "rank": self.run.rank,
            "framework": self.run.framework,
            "environment": self.environment,
            "parent": line.parent,
            "fork_sequence": line.fork_sequence,
            "fork_step": line.fork_step,
        }


def open_for_writing(
    run: str | os.PathLike[str], rank: int, framework: str, environment: dict[str, Any], take_over: float | None
) -> OpenedJournal:
    """Open a rank's journal; create the run if there is none. The arguments are those of `Journal.open`.

    Raises:
        RunInUse: another live process writes the run.
        UnknownFormat: a newer version of TranLogs wrote the run.
        UsageError: the folder cannot hold a run.
    """
    paths = JournalPaths.of(run, rank)
    refuse_inner_folder(paths.folder.parent)
    try:
        make_folder(paths.log)
        make_folder(paths.checkpoints)
    except OSError as error:
        raise UsageError(f"{run}: the run's folder cannot be created ({error}); choose a folder that can be written") from None
    notes = refuse_network_file_system(paths.folder)
    try:
        lock = take_lock(paths.folder, take_over)
        try:
            catalog, row = open_catalog(paths, rank, framework, notes)
        except BaseException:
            lock.release()
            raise
    except (LogUnavailable, OSError) as error:
        raise UsageError(f"{run}: the run cannot be opened for writing: {error}") from None
    for note in notes:
        _log.warning("%s: %s", run, note)
    return OpenedJournal(paths, lock, catalog, row, environment, notes)


def open_catalog(paths: JournalPaths, rank: int, framework: str, notes: list[str]) -> tuple[Catalog, RunRow]:
    """Open a journal's catalog for writing; rebuild it if it is damaged.

    Args:
        paths: of the journal.
        rank: of this process.
        framework: "" accepts a run of any framework.
        notes: what was repaired is appended here.

    Raises:
        UsageError: another framework wrote the run.
        LogUnavailable: the disk is full or fails.
    """
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
        if framework and row.framework and row.framework != framework:  # compaction passes ""
            raise UsageError(
                f"{paths.folder.parent} holds a run of {row.framework}, and this program uses {framework}: "
                "choose another folder"
            )
        notes += clean_up(paths, catalog)
        return catalog, row
    except BaseException:
        catalog.close()
        raise


def clean_up(paths: JournalPaths, catalog: Catalog) -> list[str]:
    """Delete temporary and half-deleted files, and list checkpoints and segments that a crash kept out of the catalog.

    Returns:
        Notes on what was added to the catalog.
    """
    for left in paths.checkpoints.glob(TEMPORARY + "*"):
        shutil.rmtree(left, ignore_errors=True)
    if not is_watched(paths.folder):
        delete_derived(paths.checkpoints)
    delete_retired(catalog, paths.checkpoints)
    listed = {row.name for row in catalog.checkpoints()} | {row.file for row in catalog.segments()}
    found, checkpoints = read_files(paths.folder, listed), catalog.checkpoints()
    known_timelines = {row.number for row in catalog.timelines()}
    has_unlisted = found.checkpoints or found.segments or found.timelines.keys() - known_timelines
    if has_unlisted:  # Without anything to add, nothing is written: the disk may be full.
        with catalog.transaction() as tables:
            if found.checkpoints:
                sync_folder(paths.checkpoints)  # The crash may have come before the names were durable.
            for row in found.checkpoints:  # Published, but not listed, because of the crash or a full disk.
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
            path.unlink()  # a temporary file, or a segment that was prepared or reset and never written
    return [f"{segment.file} was not in the catalog and was added" for segment in found.segments] + found.notes


def is_watched(folder: Path) -> bool:
    """Return True if a monitor watches the journal now."""
    monitor = read_owner(folder, "monitor")
    return monitor is not None and monitor.is_alive


def seal_abandoned_segments(
    paths: JournalPaths, catalog: Catalog, *, sync: bool, is_abandoned: Callable[[], bool] = lambda: True
) -> int:
    """Seal the segments that a dead process left open, so that a new writer writes into fresh files only.

    Args:
        paths: the journal's folders.
        catalog: the journal's catalog, open for writing.
        sync: True makes the records in the segments durable.
        is_abandoned: called inside each transaction; returns False if another process has begun to write the journal. The
            remaining segments are then left to that process. A writer takes its lock before its first transaction, so the
            answer holds until the transaction of this function ends.

    Returns:
        The number of segments that were left open.
    """
    newest = max((row.number for row in catalog.timelines()), default=1)
    abandoned = [row for row in catalog.segments() if row.state in ("ready", "open")]
    for done, row in enumerate(abandoned):
        path = paths.log / row.file
        exists = path.exists()
        try:
            found = read_segment(path, row.timeline or newest) if exists else None
            is_empty = row.state == "ready" and found is None and exists and not was_written(path, row.number)
        except (CannotRead, OSError) as error:  # A segment that recovery has read must not be treated as empty.
            raise LogUnavailable(f"{path}: {error}") from error
        if found is not None and sync:
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(fd)  # A power cut must not lose records that recovery has read.
            finally:
                os.close(fd)
        with catalog.transaction() as tables:
            if not is_abandoned():
                return done
            if tables.get(segment_key(row.ordinal), SegmentRow) != row:  # Another process has written since the row was read.
                continue
            if found is not None:
                tables.put(segment_key(row.ordinal), replace(found, state="sealed", created_at=row.created_at))
            elif not exists:
                tables.delete(segment_key(row.ordinal))
            elif is_empty:
                tables.put(segment_key(row.ordinal), replace(row, state="retired"))
            else:  # The segment was written, but no record can be read: keep the file until a checkpoint makes it unnecessary.
                tables.put(segment_key(row.ordinal), replace(row, state="sealed", last_sequence=row.base_sequence))
    return len(abandoned)


def refuse_inner_folder(run: Path) -> None:
    """Check that the folder of a run is not itself a journal: the run could not find the steps of that journal.

    Raises:
        UsageError: the folder is a journal.
    """
    if (run / CATALOG_NAME).exists():
        raise UsageError(f"{run} is the journal of one rank, not a run: use its parent folder, {run.parent}")


_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "lustre", "9p", "ceph", "gpfs", "beegfs", "glusterfs", "afs")


def refuse_network_file_system(folder: Path) -> list[str]:
    """Check that a folder does not lie on a network file system, where LMDB's memory map is not durable.

    Returns:
        A list with a note if the folder lies in memory.

    Raises:
        UsageError: the folder lies on a network file system.
    """
    kind = file_system_of(folder)
    if kind in _NETWORK or kind.startswith("fuse"):
        raise UsageError(
            f"{folder} lies on a network file system ({kind}), where a memory-mapped log can lose steps. "
            "Put the run on a local disk and ship it to a store"
        )
    if kind == "tmpfs":
        return ["the run lies in memory (tmpfs): it survives the process, not the machine"]
    return []


def is_in_memory(folder: Path) -> bool:
    """Return True if the folder lies on a tmpfs, which does not survive the machine."""
    return file_system_of(folder) == "tmpfs"


def file_system_of(folder: Path) -> str:
    """Return the type of the file system that a folder lies on; "" if it cannot be found."""
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
