"""The facts that a recovery is planned from: what the catalog lists, what the files say, what the log holds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ..base.atomic_files import ReadFile
from ..base.errors import CorruptCatalog, CorruptRecord
from ..catalog import CATALOG_NAME, Catalog, CheckpointRow, PrunedRow, RunRow, SegmentRow, Tables, TimelineRow, Watermarks
from ..catalog.lineage import Limits, lineage
from ..log.index import LogIndex, open_if_sound
from ..log.reader import SegmentReader
from ..log.record import EntryKind, Location
from ..log.scanner import is_contiguous, is_whole, refuse_newer, scan
from ..rebuild import Found, read_files
from .history import ScannedSegment
from .protocol import Spare

Choose = Callable[[Sequence[SegmentRow], Limits], Collection[int]]  # rows, and the newest lineage


@dataclass(slots=True)
class Listed:
    """What a catalog lists."""

    segments: list[SegmentRow] = field(default_factory=list)
    checkpoints: list[CheckpointRow] = field(default_factory=list)
    timelines: list[TimelineRow] = field(default_factory=list)
    watermarks: Watermarks = field(default_factory=Watermarks)
    pruned: int = 0  # a monitor has given up entries up to this sequence number
    run_id: str = ""

    @property
    def names(self) -> set[str]:
        """Names of the files and folders."""
        return {row.file for row in self.segments} | {row.name for row in self.checkpoints}


@dataclass(slots=True)
class Facts:
    """All that a plan is made of."""

    checkpoints: list[CheckpointRow]
    segments: list[ScannedSegment]
    timelines: list[TimelineRow]
    watermarks: Watermarks = field(default_factory=Watermarks)
    notes: list[str] = field(default_factory=list)
    torn_paths: list[Path] = field(default_factory=list)  # of sealed segments of which entries are damaged or missing

    @property
    def timeline(self) -> int:
        """The newest timeline."""
        return max((row.number for row in self.timelines), default=1)


IndexUse = Literal["always", "unless sealed", "if broken"]


def open_for_reading(folder: Path, *, index_use: IndexUse = "always", choose: Choose | None = None) -> Facts:
    """Collect the facts about a journal: its catalog, what files there are besides, and what the log holds.

    Where the catalog is damaged, the files' own descriptions stand in for it.

    Args:
        folder: the journal's.
        index_use: which segments are looked up in the index of the log, which is checked in full before it is opened:
            all; those that are not sealed, or lack records; those that lack records. The others are scanned. A record whose
            description is damaged in its segment is then not replaced by what the index has of it.
        choose: gives the ordinals of the segments that are looked at; all if it is left out.

    Raises:
        UnknownFormat: a newer version wrote the run.
    """
    notes: list[str] = []
    try:
        known = read_catalog(folder)
    except CorruptCatalog as error:
        known = Listed()
        notes.append(str(error))
    found = read_unlisted(folder, known)
    if known.names:
        notes += [f"{folder / 'log' / row.file}: it is not in the catalog, but it holds entries" for row in found.segments]
    notes += found.notes
    timelines = {**found.timelines, **{row.number: row for row in known.timelines}}
    newest = max(timelines)
    segments, torn = [], []
    rows = [*known.segments, *found.segments]
    chosen = {row.ordinal for row in rows} if choose is None else choose(rows, lineage(timelines.values(), newest))
    with IndexLookup(folder / "log", known.run_id, notes, index_use) as index:
        for row in newest_first(rows):
            if row.state != "retired" and row.ordinal in chosen:
                segment = scan_segment(folder / "log" / row.file, row, notes, newest, index)
                segments += [segment] if segment is not None else []
                torn += [folder / "log" / row.file] if row.state == "sealed" and not _is_whole(segment, row) else []
    checkpoints = [row for row in known.checkpoints if row.state == "published"] + found.checkpoints
    checkpoints.sort(key=lambda row: (row.timeline, row.sequence))
    return Facts(checkpoints, segments, [timelines[number] for number in sorted(timelines)], known.watermarks, notes,
                 torn)  # fmt: skip


class IndexLookup:
    """The index of a log, opened when a segment is looked up in it for the first time. Use it as a context.

    Args:
        folder: of the log.
        run_id: of the run; an index of another run is not used, and none if it is not known.
        notes: what is wrong with the index is appended here.
        use: see `open_for_reading`.
    """

    def __init__(self, folder: Path, run_id: str, notes: list[str], use: IndexUse) -> None:
        self._folder, self._run_id, self._notes, self.use = folder, run_id, notes, use
        self._index: LogIndex | None = None
        self._is_opened = False

    def __enter__(self) -> IndexLookup:
        return self

    def __exit__(self, *_: object) -> None:
        if self._index is not None:
            self._index.close()

    def locations(self, segment_id: int) -> list[Location]:
        """Return what the index has of a segment; nothing if it is missing or damaged."""
        if not self._is_opened:
            self._is_opened = True
            self._index = open_if_sound(self._folder, self._run_id, self._notes) if self._run_id else None
        if self._index is None:
            return []
        try:
            return self._index.locations(segment_id)
        except CorruptCatalog as error:
            self._notes.append(f"{error}; the segment was scanned instead")
            return []


def open_mended(folder: Path, spare: Spare | None, *, index_use: IndexUse = "always") -> Facts:
    """The facts, after what of the log is torn was replaced as far as there are copies; the notes say what was.

    Raises:
        UnknownFormat: a newer version wrote the run.
    """
    facts = open_for_reading(folder, index_use=index_use)
    told = mended(spare, facts.torn_paths)
    if told:
        facts = open_for_reading(folder, index_use=index_use)
        facts.notes += told
    return facts


def mended(spare: Spare | None, paths: Iterable[Path]) -> list[str]:
    """Replace damaged segments and checkpoints as far as there are copies; gives what was, one sentence each."""
    if spare is None:
        return []
    return [mended_note(path, source) for path in paths if (source := spare.replace(path.name))]


def mended_note(path: Path, source: str) -> str:
    """What is said of a file that was replaced."""
    return f"{path}: it was damaged, and replaced by the copy in {source}"


def _is_whole(segment: ScannedSegment | None, row: SegmentRow) -> bool:
    if segment is None:
        return False
    if is_whole(segment.locations, row.last_sequence):
        return True
    found = {one.head.sequence for one in segment.locations if one.head.kind != EntryKind.SEGMENT}
    return len(found) >= row.last_sequence - row.base_sequence


def newest_first(rows: list[SegmentRow]) -> list[SegmentRow]:
    """The order in which the segments of a run that may be being written are scanned: what one goes on after was there."""
    return sorted(rows, key=lambda row: -row.ordinal)


def read_unlisted(folder: Path, known: Listed) -> Found:
    """What the files say that a catalog does not list."""
    found = read_files(folder, known.names)
    if known.names and (found.segments or found.checkpoints):  # the run may be being written: look again
        try:
            now = read_catalog(folder).names
        except CorruptCatalog:
            return found
        found.segments = [row for row in found.segments if row.file not in now]
        found.checkpoints = [row for row in found.checkpoints if row.name not in now]
    return found


def read_catalog(folder: Path) -> Listed:
    """What the catalog lists, in one snapshot.

    Raises:
        CorruptCatalog: it is missing or damaged.
    """

    def look(tables: Tables) -> Listed:
        run = tables.get("run", RunRow)
        if run is None:
            raise CorruptCatalog(folder / CATALOG_NAME, "the run's row is missing")
        pruned = tables.get("pruned", PrunedRow) or PrunedRow()
        return Listed(tables.rows("segment/", SegmentRow), tables.rows("checkpoint/", CheckpointRow),
                      tables.rows("timeline/", TimelineRow), tables.get("watermarks", Watermarks) or Watermarks(),
                      pruned.sequence, run.run_id)  # fmt: skip

    catalog = Catalog.open(folder)
    try:
        listed: Listed = catalog.read(look)
        return listed
    finally:
        catalog.close()


def scan_segment(path: Path, row: SegmentRow, notes: list[str], timeline: int = 1,
                 index: IndexLookup | None = None) -> ScannedSegment | None:  # fmt: skip
    """The entries of one segment; None where it holds none because it was never written.

    Args:
        path: the file.
        row: what the catalog says of it.
        notes: what is wrong with it is appended here.
        timeline: the newest, to which a segment belongs that was written before the catalog recorded its opening, and
            whose first entry is damaged.
        index: of the log: what it has is not read from the file.
    """
    last = row.last_sequence if row.state == "sealed" else 0
    try:
        found = _located(path, row, last, index)
    except OSError as error:
        if row.state != "ready":
            notes.append(f"{path}: it cannot be read ({error.strerror})")
        return None
    if not found:
        if row.state == "ready":
            return None
        notes.append(f"{path}: none of its entries can be found")
    elif found[-1].head.sequence < last:
        notes.append(f"{path}: its last entries, after step {found[-1].head.step}, are damaged or missing")
    if row.state in ("ready", "open"):
        row = replace(row, timeline=_timeline_of(path, found) or row.timeline or timeline)
    return ScannedSegment(row, path, found)


def _located(path: Path, row: SegmentRow, last: int, index: IndexLookup | None) -> list[Location]:
    """Return the records of a segment: as the index has them, and behind those by a scan of the file."""
    found: list[Location] | None = None
    if index is None or index.use == "if broken" or (last and index.use == "unless sealed"):
        found = scan(path, row.number, last_sequence=last or None)
        if index is None or is_whole(found, last) or (row.state == "ready" and not found):
            return found
    known = index.locations(row.number)
    refuse_newer(path, known)
    if not is_contiguous(known):  # the offsets in the index have no checksum: each follows from the record before it
        return scan(path, row.number, last_sequence=last or None) if found is None else found
    if last and known[-1].head.sequence >= last:
        with ReadFile(path):  # it is there, and may be read
            return known
    return known + scan(path, row.number, start=known[-1].end, last_sequence=last or None)


def _timeline_of(path: Path, found: Sequence[Location]) -> int | None:
    """A segment that was written before the catalog recorded its opening says itself which timeline it is of."""
    first = [location for location in found if location.head.kind == EntryKind.SEGMENT]
    if not first:
        return None
    try:
        with SegmentReader(path) as reader:
            return int(reader.decode(first[0]).body()["timeline"])
    except (CorruptRecord, OSError, KeyError, TypeError):
        return None
