"""Rebuilding of a catalog from the segments and checkpoints of a journal, which describe themselves."""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from .base.atomic_files import ReadFile, sync_folder
from .base.errors import CannotRead, CorruptCatalog, CorruptCheckpoint, CorruptRecord
from .catalog import (
    CATALOG_NAME,
    Catalog,
    CheckpointRow,
    CommonRow,
    Incident,
    MeasuredRow,
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
from .log.record_format import HEAD, Location, RecordKind, unpack_head
from .log.record_rows import complete_records
from .log.scanner import scan
from .log.segment_file import is_unwritten, parse_segment_name, was_written

# Rows that only the catalog holds. Requests are not among them: a monitor makes them again.
_ONLY_IN_CATALOG: dict[str, type[Any]] = {
    "run": RunRow,
    "watermarks": Watermarks,
    "incident/": Incident,
    "timeline/": TimelineRow,
    "store": StoreRow,
    "common": CommonRow,
    "measured": MeasuredRow,
}


@dataclass(slots=True)
class JournalFiles:
    """Rows that the files of a journal describe.

    Attributes:
        records: the records of each segment, by ordinal.
        unreadable: the names of segment files that cannot be read.
        owners: the ids of the runs that segments and checkpoints name, by name of the file.
        foreign: checkpoints of another run, each with a sentence about it.
    """

    segments: list[SegmentRow] = field(default_factory=list)
    records: dict[int, list[Location]] = field(default_factory=dict)
    checkpoints: list[CheckpointRow] = field(default_factory=list)
    timelines: dict[int, TimelineRow] = field(default_factory=lambda: {1: TimelineRow(1)})
    runs: list[RunRow] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)
    owners: dict[str, str] = field(default_factory=dict)
    foreign: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_files(folder: Path, listed: Collection[str] = (), run_id: str = "") -> JournalFiles:
    """Read the segments and checkpoints of a journal. Checkpoints of another run are left out, with a note.

    Segments of another run need no such care: no chain of records leads to them.

    Args:
        listed: names of segment files and checkpoint folders to leave out.
        run_id: the id of the run; "" for that of most of the files.

    Raises:
        UnknownFormat: a newer version wrote one of the files.
        CannotRead: a folder cannot be listed.
    """
    found = JournalFiles()
    # Checkpoints first: they give the timeline of a segment whose first record is damaged.
    _read_checkpoints(folder / "checkpoints", listed, found)
    _read_segments(folder / "log", listed, found)
    run_id = run_id or _choose_run(found)
    others = {row.name: owner for row in found.checkpoints if (owner := found.owners.get(row.name, run_id)) != run_id}
    if not others:
        return found
    found = read_files(folder, {*listed, *others}, run_id)  # without the timelines that they name, too
    found.foreign = {
        name: f"it belongs to run {owner}, and the journal to run {run_id}: it is not used" for name, owner in others.items()
    }
    found.notes += [f"{folder / 'checkpoints' / name}: {why}" for name, why in found.foreign.items()]
    return found


def _choose_run(found: JournalFiles) -> str:
    """Return the id of the run that most segments name, or else most checkpoints."""
    counts, logged = Counter(found.owners.values()), Counter(found.owners.get(row.file) for row in found.segments)
    return max(counts, key=lambda one: (logged[one], counts[one]), default="")


def is_superseded(row: CheckpointRow, listed: Collection[CheckpointRow]) -> bool:
    """Return True if an unlisted checkpoint is older than a listed one: the log may have been pruned up to the listed one."""
    return any(other.timeline == row.timeline and other.sequence > row.sequence for other in listed)


def find_misfit(folder: Path, segments: Sequence[SegmentRow], checkpoints: Sequence[CheckpointRow]) -> str:
    """Return why a catalog does not fit the files in its folder; "" if it does.

    A folder that was put together from copies of different times, or of different runs, has such a catalog. It must not be
    believed: what it calls retired, or does not list, may be what is left of the run.
    """
    listed = [(row.file, row.state) for row in segments] + [(row.name, row.state) for row in checkpoints]
    needed = {name for name, state in listed if state in ("open", "sealed", "published")}
    missing = needed - {path.name for path in list_all(folder)}
    found = read_files(folder, {name for name, _ in listed}) if missing else JournalFiles()
    unlisted = [*(row.name for row in found.checkpoints), *(row.file for row in found.segments)]
    return f"it lists {min(missing)}, which is missing, and does not list {unlisted[0]}, which is there" if unlisted else ""


def find_other_run(folder: Path, run_id: str) -> str:
    """Return why a catalog belongs to another run than the files in its folder; "" if it does not."""
    others = set[str]()
    for path in reversed(list_all(folder)):  # the newest checkpoint first: mostly, it is the only one that is looked at
        found = _read_run_id(path)
        if found == run_id:
            return ""
        others |= {found} - {""}
    return f"it belongs to run {run_id}, and the files to run {', '.join(sorted(others))}" if others else ""


def list_all(folder: Path) -> list[Path]:
    """Return the segment files and checkpoint folders of a journal."""
    return [*list_files(folder / "log", "*.seg"), *list_files(folder / "checkpoints", "step-*")]


def _read_run_id(path: Path) -> str:
    """Return the id of the run that a segment or checkpoint names; "" if it cannot be read."""
    try:
        if path.suffix != ".seg":
            with Checkpoint(path) as checkpoint:
                return str(checkpoint.manifest.get("run_id", ""))
        with ReadFile(path) as file:
            head, named = unpack_head(os.pread(file.fd, HEAD.size, 0)), parse_segment_name(path.name)
        if head is None or named is None or head.segment_id != named[1]:
            return ""
        return str(read_first_body(path, Location(head, 0)).get("run_id", ""))
    except (CorruptCheckpoint, OSError):
        return ""


def read_segment(path: Path, timeline: int = 1) -> tuple[SegmentRow, list[Location]] | None:
    """Return the row and the records of one segment file; None if no record can be found in it.

    Args:
        timeline: the timeline to assume if the first record, which names it, is damaged.

    Raises:
        OSError: the file cannot be opened.
    """
    found = JournalFiles()
    row = _read_segment(path, timeline, found)
    if found.unreadable:
        raise OSError(errno.EIO, found.notes[-1])
    return None if row is None else (row, found.records[row.ordinal])


def rebuild_catalog(folder: Path) -> list[str]:
    """Rename a broken catalog, so that it is kept, and write a new one. The caller must hold the lock of the journal.

    Returns:
        What was done, one sentence each.

    Raises:
        UnknownFormat: a newer version wrote the run. Nothing was changed.
    """
    path, notes = folder / CATALOG_NAME, []
    kept, found = _salvage_rows(folder), read_files(folder)
    run = kept.get("run")
    if run is not None and found.foreign and run.run_id in {_read_run_id(path) for path in list_all(folder)}:
        found = read_files(folder, run_id=run.run_id)
    if run is not None and found.runs and all(run.run_id != other.run_id for other in found.runs):
        kept = {}  # another run's
    if path.exists():
        aside = folder / f"{CATALOG_NAME}.broken-{time.time_ns()}"
        os.rename(path, aside)
        notes.append(f"the broken catalog is kept as {aside.name}, and a new one was written")
    path.with_name(path.name + "-lock").unlink(missing_ok=True)
    # One transaction: a crash before its end leaves a catalog that is rebuilt again.
    with Catalog.open(folder, writable=True) as catalog, catalog.transaction() as tables:
        for timeline in found.timelines.values():
            tables.put(timeline_key(timeline.number), timeline)
        for row in found.segments:
            tables.put(segment_key(row.ordinal), row)
            complete_records(tables, row, found.records[row.ordinal])
        if found.checkpoints:
            sync_folder(folder / "checkpoints")  # The names of the folders may not be durable yet.
        for checkpoint in found.checkpoints:
            tables.put(f"checkpoint/{checkpoint.name}", checkpoint)
        if found.runs:
            tables.put("run", found.runs[0])
        if len(list(folder.parent.glob("rank*"))) > 1:  # of a group, no checkpoint is known to be on all ranks
            tables.put("common", CommonRow(0))
        for key, content in kept.items():
            tables.put(key, content)
    notes.append(f"the catalog was rebuilt from {len(found.segments)} segments and {len(found.checkpoints)} checkpoints")
    return notes + found.notes


def _salvage_rows(folder: Path) -> dict[str, Any]:
    """Return the sound rows of a broken catalog that no other file holds; {} if it cannot be opened safely."""
    kept: dict[str, Any] = {}

    def read_rows(tables: Tables) -> None:
        for prefix, kind in _ONLY_IN_CATALOG.items():
            for key in tables.keys(prefix):
                try:
                    row = tables.get(key, kind)
                except CorruptCatalog:
                    continue
                if row is not None:  # else the key itself is damaged
                    kept[key] = row

    try:
        with Catalog.open(folder) as catalog:
            catalog.read(read_rows)
    except CorruptCatalog:
        pass
    return kept


def list_files(folder: Path, pattern: str) -> list[Path]:
    """Return the files in a folder that match a pattern, sorted. `glob` would report a folder without read access as empty."""
    try:
        return [folder / name for name in sorted(os.listdir(folder)) if fnmatch(name, pattern)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CannotRead(folder, error) from error


def _read_segments(folder: Path, listed: Collection[str], found: JournalFiles) -> None:
    timeline = 1
    for path in list_files(folder, "*.seg"):
        if path.name in listed or (listed and _is_prepared(path)):
            continue
        row = _read_segment(path, timeline, found)
        if row is not None:
            timeline = row.timeline  # a later segment belongs to the same timeline or to a newer one
            found.segments.append(row)


def _is_prepared(path: Path) -> bool:
    """Return True if a file that a sound catalog does not list was prepared and never written."""
    named = parse_segment_name(path.name)
    try:
        return named is not None and not was_written(path, named[1])
    except OSError:
        return False


def _read_segment(path: Path, timeline: int, found: JournalFiles) -> SegmentRow | None:
    named = parse_segment_name(path.name)
    if named is None:
        return None
    ordinal, segment_id = named
    try:
        if is_unwritten(path):
            return None
        locations, stat = scan(path, segment_id), path.stat()
    except OSError as error:
        found.unreadable.add(path.name)
        found.notes.append(f"{path}: the segment cannot be read ({error.strerror})")
        return None
    if not locations:
        return None
    found.records[ordinal] = locations
    first, last = locations[0].head, locations[-1].head
    is_whole = first.kind == RecordKind.SEGMENT
    body = read_first_body(path, locations[0])
    try:
        timeline = int(body["timeline"])
        found.timelines[timeline] = _make_timeline(timeline, body)
        found.runs.append(_make_run(body))
        found.owners[path.name] = found.runs[-1].run_id
    except (KeyError, TypeError, ValueError):
        heads = {(location.head.sequence, f"{location.head.digest:016x}") for location in locations}
        timeline = max((row.timeline for row in found.checkpoints if (row.sequence, row.chain) in heads), default=timeline)
        found.notes.append(f"{path}: the first record of the segment is damaged; timeline {timeline} is assumed")
    return SegmentRow(
        ordinal=ordinal,
        segment_id=f"{segment_id:016x}",
        file=path.name,
        size=stat.st_size,
        state="open",  # the next writer makes its bytes durable and seals it
        timeline=timeline,
        base_sequence=first.sequence if is_whole else first.sequence - 1,
        base_step=first.step,
        last_sequence=last.sequence,
        last_step=last.step,
        used_bytes=max(location.end for location in locations),
        sealed_at=stat.st_mtime,
        created_at=stat.st_mtime,
    )


def read_first_body(path: Path, first: Location) -> dict[str, Any]:
    """Return the body of a segment's first record, which describes the segment; {} if it is damaged or another record."""
    if first.head.kind != RecordKind.SEGMENT:
        return {}
    try:
        with SegmentReader(path) as reader:
            body = reader.decode(first).body()
            return body if isinstance(body, dict) else {}
    except (CorruptRecord, OSError):
        return {}


def _read_checkpoints(folder: Path, listed: Collection[str], found: JournalFiles) -> None:
    for path in list_files(folder, "step-*"):
        if path.name in listed:
            continue
        try:
            with Checkpoint(path) as checkpoint:
                found.checkpoints.append(checkpoint.row(path.name))
                about = checkpoint.manifest
                found.timelines.setdefault(checkpoint.timeline, _make_timeline(checkpoint.timeline, about))
                if "run_id" in about:
                    found.runs.append(_make_run(about))
                    found.owners[path.name] = found.runs[-1].run_id
        except CorruptCheckpoint as error:
            found.notes.append(str(error))


def _make_timeline(number: int, about: dict[str, Any]) -> TimelineRow:
    return TimelineRow(number, about.get("parent", 0), about.get("fork_sequence", 0), about.get("fork_step", 0))


def _make_run(about: dict[str, Any]) -> RunRow:
    return RunRow(about["run_id"], about["rank"], about["created_at"], framework=about["framework"])
