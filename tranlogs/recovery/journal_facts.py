"""Facts about a journal, from which recovery is planned: the contents of the catalog, of the files and of the log.

A run that a newer version wrote is refused with UnknownFormat.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..base.atomic_files import ReadFile
from ..base.errors import CatalogUnavailable, CorruptCatalog
from ..catalog import (
    CATALOG_NAME,
    Catalog,
    CheckpointRow,
    Incident,
    MeasuredRow,
    PrunedRow,
    RunRow,
    SegmentRow,
    StoreRow,
    Tables,
    TimelineRow,
    Watermarks,
)
from ..catalog.rows import Limits, trace_lineage
from ..log.record_format import Location, RecordKind, Records
from ..log.record_rows import read_records
from ..log.scanner import refuse_newer, scan
from ..log.segment_file import was_written
from ..rebuild_catalog import JournalFiles, find_misfit, is_superseded, list_all, read_files, read_first_body
from .history import History, ScannedSegment, build_history
from .state_protocol import ReplacementSource


@dataclass(slots=True)
class JournalRows:
    """Rows of a journal: those of its catalog, and those that files describe which the catalog does not list.

    Attributes:
        pruned: the sequence number up to which a monitor has pruned records.
        listed: the names of the segment files and checkpoint folders that the catalog lists.
        damage: why the catalog is not used; None if it is. Then all rows come from the files.
        unlisted: what the files describe that the catalog does not list. Its segments and checkpoints are among the rows.
    """

    run: RunRow = field(default_factory=lambda: RunRow("", 0, 0.0))
    segments: list[SegmentRow] = field(default_factory=list)
    checkpoints: list[CheckpointRow] = field(default_factory=list)
    timelines: list[TimelineRow] = field(default_factory=list)
    watermarks: Watermarks = field(default_factory=Watermarks)
    incidents: list[Incident] = field(default_factory=list)
    store: StoreRow | None = None
    pruned: int = 0
    listed: set[str] = field(default_factory=set)
    damage: CorruptCatalog | None = None
    unlisted: JournalFiles = field(default_factory=JournalFiles)
    measured: MeasuredRow | None = None

    @property
    def timeline(self) -> int:
        """The number of the newest timeline."""
        return max((row.number for row in self.timelines), default=1)

    @property
    def limits(self) -> Limits:
        """The lineage of the newest timeline."""
        return trace_lineage(self.timelines, self.timeline)

    @property
    def published(self) -> list[CheckpointRow]:
        """The published checkpoints, oldest first."""
        found = [row for row in self.checkpoints if row.state == "published"]
        return sorted(found, key=lambda row: (row.timeline, row.sequence))

    def describe_files(self, folder: Path) -> list[str]:
        """Return what is wrong with the catalog, and in which files it is wrong, one sentence each."""
        notes = [] if self.damage is None else [str(self.damage)]
        paths = [folder / "log" / row.file for row in self.unlisted.segments if self.listed]
        notes += [f"{path}: the catalog does not list it, but it holds records" for path in paths]
        return notes + self.unlisted.notes


@dataclass(slots=True)
class Facts:
    """Facts from which a recovery is planned: the rows of a journal, and what its log holds.

    Attributes:
        notes: what is damaged or missing, one sentence each.
        torn_paths: files of sealed segments that miss records or hold damaged ones.
        lost_paths: files of segments in which no record can be read.
    """

    rows: JournalRows
    segments: list[ScannedSegment] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    torn_paths: list[Path] = field(default_factory=list)
    lost_paths: list[Path] = field(default_factory=list)

    @property
    def checkpoints(self) -> list[CheckpointRow]:
        """The published checkpoints, oldest first."""
        return self.rows.published

    @property
    def is_empty(self) -> bool:
        """True if there is neither a checkpoint nor a record of a unit."""
        return not self.checkpoints and not any(len(segment.locations) > 1 for segment in self.segments)

    def build_history(self) -> History:
        """Chain the records of the newest timeline and of those that lead to it."""
        return build_history(self.segments, self.rows.limits)


def read_facts(folder: Path) -> Facts:
    """Read the facts about a journal: its rows, and what its log holds. The notes are about the catalog, too."""
    rows = read_rows(folder)
    facts = read_log(folder, rows)
    facts.notes = rows.describe_files(folder) + facts.notes
    return facts


def read_log(folder: Path, rows: JournalRows, chosen: Collection[int] | None = None, checked_max: int = sys.maxsize) -> Facts:
    """Return the facts about a journal, given its rows. The notes are about its log only.

    Args:
        chosen: the ordinals of the segments to read; None for all.
        checked_max: the number of newest records that must be a chain. Older segments are taken as the catalog lists them.
    """
    facts = Facts(rows)
    wanted = [row for row in sort_newest_first(rows.segments) if row.state != "retired"]
    wanted = [row for row in wanted if chosen is None or row.ordinal in chosen]
    records = look_up_records(folder, wanted, facts.notes, checked_max) if rows.damage is None else {}
    for row in wanted:
        path = folder / "log" / row.file
        segment = scan_segment(path, row, facts.notes, rows.timeline, records.get(row.ordinal))
        facts.segments += [segment] if segment is not None else []
        facts.torn_paths += [path] if row.state == "sealed" and not _is_whole(segment, row) else []
        facts.lost_paths += [path] if row.state != "ready" and (segment is None or not segment.locations) else []
    return facts


def read_repaired_facts(folder: Path, spare: ReplacementSource | None) -> Facts:
    """Replace torn segments for which there is a sound copy, and read the facts. The notes list what was replaced."""
    facts = read_facts(folder)
    replaced = replace_damaged(spare, facts.torn_paths)
    if replaced:
        facts = read_facts(folder)
        facts.notes += replaced
    return facts


def replace_damaged(spare: ReplacementSource | None, paths: Iterable[Path]) -> list[str]:
    """Replace damaged segments and checkpoints for which there is a sound copy.

    Returns:
        What was replaced, one sentence each.
    """
    if spare is None:
        return []
    return [describe_replacement(path, source) for path in paths if (source := spare.replace(path.name))]


def describe_replacement(path: Path, source: str) -> str:
    """Return a sentence about a file that was replaced by a copy from `source`."""
    return f"{path}: it was damaged, and replaced by the copy in {source}"


def look_up_records(
    folder: Path, rows: Iterable[SegmentRow], notes: list[str], checked_max: int = sys.maxsize
) -> dict[int, Records]:
    """Return the records of segments that the catalog lists, by ordinal, read in one snapshot.

    A segment is left out if its records are no chain from the first one on. It is scanned instead, and so are all segments if
    the catalog cannot be read.
    """
    found = dict[int, Records]()

    def read(tables: Tables) -> None:
        count = 0
        for row in rows:
            try:
                records = read_records(tables, row.ordinal)
                if records and count >= checked_max:
                    records.is_chained = True
                    found[row.ordinal] = records
                elif records.is_sound(row.number):
                    found[row.ordinal] = records
                count += len(records)
            except CorruptCatalog as error:
                notes.append(f"{error}; the segment was scanned instead")

    try:
        with Catalog.open(folder) as catalog:
            catalog.read(read)
    except (CorruptCatalog, CatalogUnavailable) as error:
        notes.append(f"{error}; the segments were scanned instead")
        return {}
    return found


def _is_whole(segment: ScannedSegment | None, row: SegmentRow) -> bool:
    """Return True if a sealed segment holds all of its records."""
    if segment is None:
        return False
    found = segment.locations
    if isinstance(found, Records) and found.is_chained:
        count = len(found) - 1
    else:
        count = len({one.head.sequence for one in found if one.head.kind != RecordKind.SEGMENT})
    return count >= row.last_sequence - row.base_sequence


def sort_newest_first(rows: list[SegmentRow]) -> list[SegmentRow]:
    """Return segments in the order in which they are scanned while the run may be written.

    A segment continues earlier ones. Since these are scanned after it, all records that it continues are found.
    """
    return sorted(rows, key=lambda row: -row.ordinal)


def read_rows(folder: Path) -> JournalRows:
    """Return the rows of a journal. If the catalog is damaged or does not fit the files, all of them come from the files."""
    try:
        rows = read_catalog(folder)
    except CorruptCatalog as error:
        rows = JournalRows(damage=error)
    found = rows.unlisted = read_files(folder, rows.listed, rows.run.run_id)
    if rows.listed and (found.segments or found.checkpoints):  # a trainer may have listed them since the catalog was read
        with suppress(CorruptCatalog):
            now = read_catalog(folder).listed
            found.segments = [row for row in found.segments if row.file not in now]
            found.checkpoints = [row for row in found.checkpoints if row.name not in now]
    if rows.damage is not None and found.runs:
        rows.run = found.runs[0]
    rows.segments += found.segments
    rows.checkpoints += [row for row in found.checkpoints if not is_superseded(row, rows.checkpoints)]
    timelines = {**found.timelines, **{row.number: row for row in rows.timelines}}
    rows.timelines = [timelines[number] for number in sorted(timelines)]
    return rows


def read_catalog(folder: Path) -> JournalRows:
    """Return what the catalog lists, in one snapshot.

    Raises:
        CorruptCatalog: the catalog is missing or damaged, or does not fit the files.
    """

    def read_tables(tables: Tables) -> JournalRows:
        run = tables.get("run", RunRow)
        if run is None and list_all(folder):
            raise CorruptCatalog(folder / CATALOG_NAME, "the run's row is missing")
        pruned = tables.get("pruned", PrunedRow) or PrunedRow()
        segments, checkpoints = tables.rows("segment/", SegmentRow), tables.rows("checkpoint/", CheckpointRow)
        return JournalRows(
            run or RunRow("", 0, 0.0),
            segments,
            checkpoints,
            tables.rows("timeline/", TimelineRow),
            tables.get("watermarks", Watermarks) or Watermarks(),
            tables.rows("incident/", Incident),
            tables.get("store", StoreRow),
            pruned.sequence,
            {row.file for row in segments} | {row.name for row in checkpoints},
            measured=tables.get("measured", MeasuredRow),
        )

    with Catalog.open(folder) as catalog:
        for _ in range(2):  # a file of which a trainer has deleted the row meanwhile is none that is missing
            contents: JournalRows = catalog.read(read_tables)
            why = find_misfit(folder, contents.segments, contents.checkpoints)
            if not why:
                return contents
        raise CorruptCatalog(catalog.path, why)


def scan_segment(
    path: Path, row: SegmentRow, notes: list[str], timeline: int = 1, known: Records | None = None
) -> ScannedSegment | None:
    """Return the records of one segment; None if it was never written or cannot be read.

    Args:
        timeline: the newest timeline. A segment belongs to it if it was written before the catalog recorded its opening and
            its first record is damaged.
        known: the records that the catalog lists, which are not read from the file.
    """
    last = row.last_sequence if row.state == "sealed" else 0
    try:
        if row.state == "ready" and not was_written(path, row.number):
            return None
        found = _locate(path, row, last, known)
    except OSError as error:
        if row.state != "ready":
            notes.append(f"{path}: it cannot be read ({error.strerror})")
        return None
    if not found:
        if row.state == "ready":
            return None
        notes.append(f"{path}: none of its records can be found")
    elif found[-1].head.sequence < last:
        notes.append(f"{path}: its last records, after step {found[-1].head.step}, are damaged or missing")
    if row.state in ("ready", "open"):  # it was perhaps written before the catalog recorded its opening
        named = read_first_body(path, found[0]).get("timeline") if found else None
        row = replace(row, timeline=named if isinstance(named, int) and named else row.timeline or timeline)
    return ScannedSegment(row, path, found)


def _locate(path: Path, row: SegmentRow, last: int, known: Records | None) -> Sequence[Location]:
    """Return the records of a segment: those that the catalog lists, and those after them by a scan of the file."""
    if known is None:
        return scan(path, row.number, last_sequence=last or None)
    refuse_newer(path, known)
    newest = known[-1]
    if last and newest.head.sequence >= last:
        with ReadFile(path):  # raises OSError if it cannot be opened
            return known
    return known.extended(scan(path, row.number, start=newest.end, last_sequence=last or None))
