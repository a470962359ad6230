"""Open a journal for writing: its folders, its lock and its catalog. Finish operations that a crash interrupted.

The segments that a dead process left are sealed, and retired where no recovery can reach their records.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..base.atomic_files import make_folder, sync_folder
from ..base.errors import CannotRead, CorruptCatalog, LogUnavailable, UsageError
from ..catalog import CATALOG_NAME, Catalog, RunRow, SegmentRow, Tables, TimelineRow, segment_key, timeline_key
from ..checkpoints.folder import TEMPORARY
from ..log.record_format import Position
from ..log.record_rows import complete_records, delete_records
from ..log.scanner import scan
from ..log.segment_file import was_written
from ..rebuild_catalog import find_misfit, find_other_run, is_superseded, list_all, read_files, read_segment, rebuild_catalog
from ..retention.prune import delete_retired
from .owner_lock import OwnerLock, own_briefly, owns
from .paths import JournalPaths, refuse_network_file_system

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedJournal:
    """A journal that this process has opened for writing.

    Attributes:
        environment: what rounding depends on. Kept by reference: an integration fills it later.
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


def open_for_writing(run: str | os.PathLike[str], rank: int, framework: str, environment: dict[str, Any]) -> OpenedJournal:
    """Open a rank's journal; create the run if there is none. The arguments are those of `Journal.open`.

    Raises:
        RunInUse: another live process writes the run.
        UnknownFormat: a newer version of TranLogs wrote the run.
        UsageError: the folder cannot hold a run.
    """
    paths = JournalPaths.of(os.path.abspath(run), rank)  # The script may change its working folder.
    refuse_inner_folder(paths.folder.parent)
    try:
        make_folder(paths.log)
        make_folder(paths.checkpoints)
    except OSError as error:
        raise UsageError(f"{run}: the run's folder cannot be created ({error}); choose a folder that can be written") from None
    notes = refuse_network_file_system(paths.folder)
    try:
        lock = OwnerLock(paths.folder)
        try:
            refuse_hard_links(paths)
            catalog, row = open_catalog(paths, rank, framework, notes)
            catalog.demand_writer = lock.keep
        except BaseException:
            lock.release()
            raise
    except (LogUnavailable, OSError) as error:
        raise UsageError(f"{run}: the run cannot be opened for writing: {error}") from None
    for note in notes:
        _log.warning("%s: %s", run, note)
    return OpenedJournal(paths, lock, catalog, row, environment, notes)


def refuse_hard_links(paths: JournalPaths) -> None:
    """Check that no other run shares the files that are written in place: a copy by `cp -al` or `rsync --link-dest` does.

    Raises:
        UsageError: one of them has another name, too.
    """
    path = paths.folder / CATALOG_NAME
    links = path.stat().st_nlink if path.exists() else 1
    if links > 1:
        raise UsageError(
            f"{path} has {links} names (hard links): this run shares its files with a copy (cp -al, rsync --link-dest), "
            "and training would damage both. Copy it without links (cp -r RUN NEW) and train on NEW, or delete the other"
        )


def open_catalog(paths: JournalPaths, rank: int, framework: str, notes: list[str]) -> tuple[Catalog, RunRow]:
    """Open a journal's catalog for writing; rebuild it if it is damaged.

    Args:
        framework: "" accepts a run of any framework.

    Raises:
        UsageError: another framework wrote the run.
        LogUnavailable: the disk is full or fails.
    """
    has_data = bool(list_all(paths.folder))
    try:
        if has_data and not (paths.folder / CATALOG_NAME).exists():
            raise CorruptCatalog(paths.folder / CATALOG_NAME, "the catalog is missing")
        catalog = Catalog.open(paths.folder, writable=True)
        try:
            catalog.read(Tables.check)
            run = catalog.run()
            if has_data and run is None:
                raise CorruptCatalog(catalog.path, "the run's row is missing")
            if run is not None and (why := find_other_run(paths.folder, run.run_id)):
                raise CorruptCatalog(catalog.path, why)
            if why := find_misfit(paths.folder, catalog.segments(), catalog.checkpoints()):
                raise CorruptCatalog(catalog.path, why)
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
        if framework and row.framework and row.framework != framework:
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

    A kill between a file's name and its row is ordinary, and gives no note.

    Returns:
        Notes on files that could not be read.
    """
    for left in paths.checkpoints.glob(TEMPORARY + "*"):
        shutil.rmtree(left, ignore_errors=True)
    delete_retired(catalog, paths.checkpoints, catalog.make)
    listed = {row.name for row in catalog.checkpoints()} | {row.file for row in catalog.segments()}
    run = catalog.run()
    found = read_files(paths.folder, listed, run.run_id if run is not None else "")
    checkpoints = catalog.checkpoints()
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
                complete_records(tables, segment, found.records[segment.ordinal])
            for number, timeline in found.timelines.items():
                if number not in known_timelines:
                    tables.put(timeline_key(number), timeline)
    known = listed | found.unreadable | {segment.file for segment in found.segments}
    for path in sorted(paths.log.iterdir()):
        if path.name not in known:
            path.unlink()  # a temporary file, or a segment that was prepared or reset and never written
    return found.notes


def refuse_inner_folder(run: Path) -> None:
    """Check that the folder of a run is not itself a journal: the run could not find the steps of that journal.

    Raises:
        UsageError: the folder is a journal.
    """
    if (run / CATALOG_NAME).exists():
        raise UsageError(f"{run} is the journal of one rank, not a run: use its parent folder, {run.parent}")


# Segments that a dead process left.


def seal_if_abandoned(paths: JournalPaths) -> int:
    """Seal the segments that a dead trainer left open, so that they can be shipped and pruned; return their number.

    A trainer that starts meanwhile waits until they are sealed.
    """
    with Catalog.open(paths.folder) as catalog:
        if owns(paths.folder) or not _find_abandoned(catalog):
            return 0
        with own_briefly(paths.folder) as is_owner:
            if not is_owner:
                return 0
            with Catalog.open(paths.folder, writable=True) as writable:
                return seal_abandoned_segments(paths, writable, sync=True)


def _find_abandoned(catalog: Catalog) -> list[SegmentRow]:
    return [row for row in catalog.segments() if row.state in ("ready", "open")]


def seal_abandoned_segments(paths: JournalPaths, catalog: Catalog, *, sync: bool) -> int:
    """Seal the segments that a dead process left open, so that a new writer writes into fresh files only.

    Returns:
        The number of segments that were left open.
    """
    newest = max((row.number for row in catalog.timelines()), default=1)
    abandoned = _find_abandoned(catalog)
    for row in abandoned:
        path = paths.log / row.file
        exists = path.exists()
        try:
            is_empty = exists and row.state == "ready" and not was_written(path, row.number)
            found = read_segment(path, row.timeline or newest) if exists and not is_empty else None
        except (CannotRead, OSError) as error:  # A segment that recovery has read must not be treated as empty.
            raise LogUnavailable(f"{path}: {error}") from error
        if found is not None and sync:
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(fd)  # A power cut must not lose records that recovery has read.
            finally:
                os.close(fd)
        with catalog.transaction() as tables:
            if found is not None:
                sealed, records = found
                tables.put(segment_key(row.ordinal), replace(sealed, state="sealed", created_at=row.created_at))
                complete_records(tables, sealed, records)
            elif not exists:
                tables.delete(segment_key(row.ordinal))
                delete_records(tables, row.ordinal)
            elif is_empty:
                tables.put(segment_key(row.ordinal), replace(row, state="retired"))
            else:  # The segment was written, but no record can be read: keep the file until a checkpoint makes it unnecessary.
                tables.put(segment_key(row.ordinal), replace(row, state="sealed", last_sequence=row.base_sequence))
    return len(abandoned)


def retire_unreachable_segments(paths: JournalPaths, catalog: Catalog, position: Position) -> None:
    """Retire the sealed segments that begin at or after a position on its timeline, and hold no boundary.

    A power cut can leave the first records of a segment on the disk, and none of the records before them. No boundary commits
    these records, and the run continues before them on the same timeline.
    """
    later = [
        row
        for row in catalog.segments()
        if row.state == "sealed" and row.timeline == position.timeline and row.base_sequence >= position.sequence
    ]
    for row in later:
        try:
            locations = scan(paths.log / row.file, row.number)
        except (CannotRead, OSError):  # The segment stays until a checkpoint makes it unnecessary.
            continue
        if not any(location.head.kind.is_boundary for location in locations):
            with catalog.transaction() as tables:
                tables.put(segment_key(row.ordinal), replace(row, state="retired"))
