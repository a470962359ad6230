"""What the segments and checkpoints of a journal say of themselves, and a catalog made from that."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from .base.atomic_files import sync_folder
from .base.errors import CannotRead, CorruptCatalog, CorruptCheckpoint, CorruptRecord
from .catalog import (
    CATALOG_NAME,
    Catalog,
    CheckpointRow,
    CommonRow,
    Incident,
    RunRow,
    SegmentRow,
    StoreRow,
    Tables,
    TimelineRow,
    Watermarks,
    segment_key,
    timeline_key,
)
from .checkpoints import Checkpoint
from .log.reader import SegmentReader
from .log.record import EntryKind, Location
from .log.scanner import scan
from .log.segments.segment_file import parse_segment_name

# What no file but the catalog says; the requests of a monitor are made anew by it.
_ONLY_IN_CATALOG: dict[str, type[Any]] = {
    "run": RunRow, "watermarks": Watermarks, "incident/": Incident, "timeline/": TimelineRow, "store": StoreRow,
    "common": CommonRow,
}  # fmt: skip


@dataclass(slots=True)
class JournalFiles:
    """What the files of a journal say of themselves; `notes` has what is damaged, one sentence each."""

    segments: list[SegmentRow] = field(default_factory=list)
    checkpoints: list[CheckpointRow] = field(default_factory=list)
    timelines: dict[int, TimelineRow] = field(default_factory=lambda: {1: TimelineRow(1)})
    runs: list[RunRow] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)  # names of files
    notes: list[str] = field(default_factory=list)


def read_files(folder: Path, listed: Collection[str] = ()) -> JournalFiles:
    """Read a journal's files, but those whose names are `listed` already.

    Raises:
        UnknownFormat: a newer version wrote one of them.
        CannotRead: a folder cannot be listed.
    """
    found = JournalFiles()
    _read_checkpoints(folder / "checkpoints", listed, found)  # first: they tell the timeline of a segment that does not
    _read_segments(folder / "log", listed, found)
    return found


def is_superseded(row: CheckpointRow, listed: Collection[CheckpointRow]) -> bool:
    """Whether a checkpoint that the catalog does not list is older than one that it does: by that one the log was pruned."""
    return any(other.timeline == row.timeline and other.sequence > row.sequence for other in listed)


def read_segment(path: Path, timeline: int = 1) -> SegmentRow | None:
    """The row of one segment file; None where no entry of it can be found.

    Args:
        path: the file.
        timeline: the one that it is taken for where its first entry, which says it, is damaged.

    Raises:
        OSError: it cannot be opened.
    """
    found = JournalFiles()
    row = _read_segment(path, timeline, found)
    if found.unreadable:
        raise OSError(errno.EIO, found.notes[-1])
    return row


def rebuild_catalog(folder: Path) -> list[str]:
    """Put a broken catalog aside (its file is kept) and write a new one. The caller holds the owner lock.

    Returns:
        What was done, one sentence each.

    Raises:
        UnknownFormat: a newer version wrote the run; nothing was changed.
    """
    path, notes = folder / CATALOG_NAME, []
    kept, found = _salvaged(folder), read_files(folder)
    if path.exists():
        aside = folder / f"{CATALOG_NAME}.broken-{time.time_ns()}"
        os.rename(path, aside)
        notes.append(f"the catalog that was there is kept as {aside.name}, and a new one was written")
    path.with_name(path.name + "-lock").unlink(missing_ok=True)
    catalog = Catalog.open(folder, writable=True)
    try:
        with catalog.transaction() as tables:  # all in one: a crash before its end leaves a catalog to be rebuilt again
            for timeline in found.timelines.values():
                tables.put(timeline_key(timeline.number), timeline)
            for row in found.segments:
                tables.put(segment_key(row.ordinal), row)
            if found.checkpoints:
                sync_folder(folder / "checkpoints")  # a crash may have come before their names were kept
            for checkpoint in found.checkpoints:
                tables.put(f"checkpoint/{checkpoint.name}", checkpoint)
            if found.runs:
                tables.put("run", found.runs[0])
            if len(list(folder.parent.glob("rank*"))) > 1:  # not even one's newest checkpoint need be one that all have
                tables.put("common", CommonRow(0))
            for key, content in kept.items():
                tables.put(key, content)
    finally:
        catalog.close()
    notes.append(f"the catalog was rebuilt from {len(found.segments)} segments and {len(found.checkpoints)} checkpoints")
    return notes + found.notes


def _salvaged(folder: Path) -> dict[str, Any]:
    """The sound rows of a broken catalog that nothing else could give; none where it cannot be opened safely."""
    kept: dict[str, Any] = {}

    def look(tables: Tables) -> None:
        for prefix, kind in _ONLY_IN_CATALOG.items():
            for key in tables.keys(prefix):
                try:
                    kept[key] = tables.get(key, kind)
                except CorruptCatalog:
                    continue

    try:
        catalog = Catalog.open(folder)
        try:
            catalog.read(look)
        finally:
            catalog.close()
    except CorruptCatalog:
        pass
    return kept


def list_files(folder: Path, pattern: str) -> list[Path]:
    """What lies in a folder: `glob` would take one that may not be listed for an empty one.

    Raises:
        CannotRead: it cannot be listed.
    """
    try:
        return sorted(folder / name for name in os.listdir(folder) if fnmatch(name, pattern))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CannotRead(folder, error) from error


def _read_segments(folder: Path, listed: Collection[str], found: JournalFiles) -> None:
    timeline = 1
    for path in list_files(folder, "*.seg"):
        if path.name in listed:
            continue
        row = _read_segment(path, timeline, found)
        if row is not None:
            timeline = row.timeline  # a later segment is of the same timeline or a newer one
            found.segments.append(row)


def _read_segment(path: Path, timeline: int, found: JournalFiles) -> SegmentRow | None:
    named = parse_segment_name(path.name)
    if named is None:
        return None
    ordinal, segment_id = named
    try:
        locations, stat = scan(path, segment_id), path.stat()
    except OSError as error:
        found.unreadable.add(path.name)
        found.notes.append(f"{path}: it cannot be read ({error.strerror})")
        return None
    if not locations:
        return None
    first, last = locations[0].head, locations[-1].head
    is_whole = first.kind == EntryKind.SEGMENT
    body = _body(path, locations[0]) if is_whole else None
    if body is not None:
        try:
            timeline = int(body["timeline"])
            found.timelines[timeline] = _timeline(timeline, body)
            found.runs.append(RunRow(body["run_id"], body["rank"], body["created_at"], framework=body["framework"]))
        except (KeyError, TypeError, ValueError):
            body = None
    if body is None:
        heads = {(location.head.sequence, f"{location.head.digest:016x}") for location in locations}
        timeline = max((row.timeline for row in found.checkpoints if (row.sequence, row.chain) in heads), default=timeline)
        found.notes.append(f"{path}: its first entry is damaged; the segment was taken for one of timeline {timeline}")
    return SegmentRow(  # open, as far as one can know: whoever writes next makes its bytes durable and seals it
        ordinal, f"{segment_id:016x}", path.name, stat.st_size, "open", timeline,
        first.sequence if is_whole else first.sequence - 1, first.step,
        last.sequence, last.step, max(location.end for location in locations), stat.st_mtime, stat.st_mtime,
    )  # fmt: skip


def _body(path: Path, first: Location) -> dict[str, Any] | None:
    """What a segment's first entry says; None where it is damaged."""
    try:
        with SegmentReader(path, uses_index=False) as reader:
            body = reader.decode(first).body()
            return body if isinstance(body, dict) else None
    except (CorruptRecord, OSError):
        return None


def _read_checkpoints(folder: Path, listed: Collection[str], found: JournalFiles) -> None:
    for path in list_files(folder, "step-*"):
        if path.name in listed:
            continue
        try:
            with Checkpoint(path) as checkpoint:
                found.checkpoints.append(checkpoint.row(path.name))
                found.timelines.setdefault(checkpoint.timeline, _timeline(checkpoint.timeline, checkpoint.manifest))
                about = checkpoint.manifest
                if "run_id" in about:
                    found.runs.append(RunRow(about["run_id"], about["rank"], about["created_at"], framework=about["framework"]))
        except CorruptCheckpoint as error:
            found.notes.append(str(error))


def _timeline(number: int, about: dict[str, Any]) -> TimelineRow:
    return TimelineRow(number, about.get("parent", 0), about.get("fork_sequence", 0), about.get("fork_step", 0))
