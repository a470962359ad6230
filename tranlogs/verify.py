"""Verification of a journal: every checksum, every chain, every byte of log and checkpoints, and the catalog against the files.

Files are read by plain reads, and LMDB opens a catalog only after a check of its structure. So no content can end the process
or raise: damage is reported as a `Problem`. Entries that recovery cannot reach any more are not checked: those after the fork
of another timeline, and those that a power cut tore off. Entries before the oldest checkpoint may be missing. The run may be
written meanwhile: a file that is retired while it is read is no problem.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .base.errors import CorruptCatalog, CorruptCheckpoint, CorruptRecord, LogUnavailable, UnknownFormat
from .catalog import CATALOG_NAME, Catalog, CheckpointRow, SegmentRow, Tables
from .catalog.lineage import Limits, is_on_lineage, trace_lineage
from .checkpoints import Checkpoint
from .checkpoints.folder import MANIFEST
from .encoding import tree
from .log.index import INDEX_NAME, LogIndex
from .log.reader import SegmentReader
from .log.record import EntryKind, Head, Location, checksum_of
from .log.scanner import scan
from .rebuild import JournalFiles, is_superseded
from .recovery.facts import CatalogContents, read_catalog, read_unlisted, scan_segment, sort_newest_first
from .recovery.history import History, Link, ScannedSegment, build_history


@dataclass(frozen=True, slots=True)
class Problem:
    """Damage to a file.

    Attributes:
        path: the file.
        what: what differs from what was written.
        step: the step that is affected; None if it is unknown.
        tensor: the tensor that is affected; None if it is unknown, or if no single one is.
    """

    path: Path
    what: str
    step: int | None = None
    tensor: str | None = None

    def __str__(self) -> str:
        where = (f"step {self.step}: " if self.step is not None else "") + (f"tensor {self.tensor}: " if self.tensor else "")
        return f"{self.path}: {where}{self.what}"


@dataclass(frozen=True, slots=True)
class Checked:
    """A part of a file that was checked, whether it is sound or not.

    Attributes:
        path: the file.
        nbytes: the bytes that were checked.
        entries: the number of entries in them.
        tensors: the number of tensors in them.
    """

    path: Path
    nbytes: int
    entries: int = 0
    tensors: int = 0


Finding = Problem | Checked


def verify_journal(folder: Path) -> Iterator[Finding]:
    """Check the journal in a folder. Yield what was checked and what is damaged."""
    try:
        yield from _verify(folder)
    except UnknownFormat as error:
        yield Problem(Path(str(error.path)), error.why)


def _verify(folder: Path) -> Iterator[Finding]:
    catalog = folder / CATALOG_NAME
    try:
        _read_every_row(folder)
        known = read_catalog(folder)
        yield Checked(catalog, catalog.stat().st_size)
    except CorruptCatalog as error:
        known = CatalogContents()
        yield Problem(catalog, error.why)
    found = read_unlisted(folder, known)
    if known.names:
        for row in found.segments:
            yield Problem(catalog, f"it does not list segment {row.file}, which reaches step {row.last_step}")
    yield from _verify_checkpoints(folder, known)
    yield from _verify_index(folder, known)
    _add_unlisted(known, found)
    yield from _verify_written_log(folder, known)


def _add_unlisted(known: CatalogContents, found: JournalFiles) -> None:
    """Add what the files say of themselves to what the catalog lists."""
    known.segments += found.segments
    known.checkpoints += [row for row in found.checkpoints if not is_superseded(row, known.checkpoints)]
    known.timelines += [row for row in found.timelines.values() if row.number not in {row.number for row in known.timelines}]


def _read_every_row(folder: Path) -> None:
    catalog = Catalog.open(folder)
    try:
        catalog.read(Tables.check)
    finally:
        catalog.close()


def _is_gone(folder: Path, row: SegmentRow | CheckpointRow) -> bool:
    """Return True if the file of a row was retired after the row was read, by a trainer or a monitor."""
    try:
        now = read_catalog(folder)
    except CorruptCatalog:
        return False
    if isinstance(row, CheckpointRow):
        return not any(other.name == row.name and other.state == "published" for other in now.checkpoints)
    return not any(other.file == row.file and other.state != "retired" for other in now.segments)


# Checkpoints.


def _verify_checkpoints(folder: Path, known: CatalogContents) -> Iterator[Finding]:
    rows = {row.name: row for row in known.checkpoints}
    names = set(rows) | {path.name for path in (folder / "checkpoints").glob("step-*")}
    for name in sorted(names):
        row = rows.get(name)
        if row is not None and row.state == "retired":
            continue
        for finding in _verify_checkpoint(folder / "checkpoints" / name, row):
            if isinstance(finding, Problem) and row is not None and _is_gone(folder, row):
                break
            yield finding


def _verify_checkpoint(path: Path, row: CheckpointRow | None) -> Iterator[Finding]:
    try:
        with Checkpoint(path) as checkpoint:
            identity = (checkpoint.step, checkpoint.sequence, checkpoint.chain, checkpoint.timeline)
            if row is not None and identity != (row.step, row.sequence, int(row.chain, 16), row.timeline):
                yield Problem(path / MANIFEST, "it describes another checkpoint than the one that the catalog lists", row.step)
            for nbytes, damage in checkpoint.verify():
                yield Checked(path, nbytes, tensors=1)
                if damage is not None:
                    yield _make_checkpoint_problem(damage, checkpoint.step)
    except CorruptCheckpoint as damage:
        yield _make_checkpoint_problem(damage, None if row is None else row.step)


def _make_checkpoint_problem(damage: CorruptCheckpoint, step: int | None) -> Problem:
    return Problem(Path(str(damage.path)), damage.why, step, damage.tensor)


# The log.


def _verify_index(folder: Path, known: CatalogContents) -> Iterator[Finding]:
    """Compare the index with the segments. Records that it lacks are no problem: they are added when the run continues."""
    path = folder / "log" / INDEX_NAME
    if not known.run_id or not path.exists():
        return
    try:
        index = LogIndex.open(folder / "log", known.run_id)
    except CorruptCatalog as error:
        yield Problem(path, error.why)
        return
    except LogUnavailable:
        return
    try:
        for row in known.segments:
            if row.state != "retired":
                yield from _compare_index(index, folder / "log" / row.file, row)
        yield Checked(path, path.stat().st_size)
    except CorruptCatalog as error:
        yield Problem(path, error.why)
    finally:
        index.close()


def _compare_index(index: LogIndex, path: Path, row: SegmentRow) -> Iterator[Finding]:
    """Yield the records in which the index differs from a segment."""
    indexed = index.locations(row.number)  # read first: records that are written meanwhile are in the segment only
    try:
        found = {one.head.sequence: one for one in scan(path, row.number) if one.head.kind != EntryKind.SEGMENT}
    except OSError:
        return
    for location in indexed:
        there = found.get(location.head.sequence)
        if (
            location.head.kind != EntryKind.SEGMENT
            and there is not None
            and (there.offset, there.head) != (location.offset, location.head)
        ):
            yield Problem(
                index.path, f"record {location.head.sequence} differs from the one in {path.name}", location.head.step
            )
        elif location.description is not None and checksum_of(location.description) != location.head.description_sum:
            yield Problem(index.path, f"the description of record {location.head.sequence} is damaged", location.head.step)
    newest = max(found, default=-1)
    lost = [one.head for one in indexed if one.head.sequence > newest and one.head.kind != EntryKind.SEGMENT]
    if lost and row.state != "sealed":  # where a sealed segment ends is known from the catalog
        yield Problem(path, f"record {lost[0].sequence} and later ones are in the index, but not in the file", lost[0].step)


def _verify_written_log(folder: Path, known: CatalogContents) -> Iterator[Finding]:
    """Check the log, and check unsealed segments that seem damaged again: they may have been written while they were read."""
    unsealed = {folder / "log" / row.file for row in known.segments if row.state in ("open", "ready")}
    needs_second_look = False
    for finding in _verify_log(folder, known):
        if isinstance(finding, Problem) and finding.path in unsealed:
            needs_second_look = True
        else:
            yield finding
    if needs_second_look:
        try:
            again = read_catalog(folder)
        except CorruptCatalog:
            again = CatalogContents()
        _add_unlisted(again, read_unlisted(folder, again))
        yield from (one for one in _verify_log(folder, again) if isinstance(one, Problem) and one.path in unsealed)


def _verify_log(folder: Path, known: CatalogContents) -> Iterator[Finding]:
    newest = max((row.number for row in known.timelines), default=1)
    limits = trace_lineage(known.timelines, newest)
    segments = []
    for row in sort_newest_first(known.segments):
        if row.state == "retired" or (row.state != "ready" and row.timeline not in limits):
            continue
        path, notes = folder / "log" / row.file, list[str]()
        segment = scan_segment(path, row, notes, newest)
        if segment is not None:
            segments.append(segment)
        for what in _check_file(path, row):
            if not _is_gone(folder, row):
                yield Problem(path, what)
    segments = [segment for segment in segments if segment.row.timeline in limits]
    history = build_history(segments, limits)
    links = _group_by_segment(history)
    needed = _find_needed(segments, limits, min((row.sequence for row in _list_published(known, limits)), default=0))
    for segment in segments:
        for finding in _verify_segment(segment, links.get(segment.row.file, []), needed[segment.row.file]):
            if isinstance(finding, Problem) and _is_gone(folder, segment.row):
                break
            yield finding
    yield from _verify_history(folder, known, history, limits)


def _check_file(path: Path, row: SegmentRow) -> Iterator[str]:
    try:
        size = path.stat().st_size
        os.close(os.open(path, os.O_RDONLY))
    except OSError as error:
        if row.state != "ready":
            yield f"the catalog lists it, but it cannot be read ({error.strerror})"
        return
    if size != row.size and not (row.state in ("ready", "open") and size > row.size):  # a long record may have enlarged it
        yield f"it has {size} bytes, expected {row.size}"


def _group_by_segment(history: History) -> dict[str, list[Link]]:
    links: dict[str, list[Link]] = {}
    for link in itertools.chain.from_iterable(history.runs):
        links.setdefault(link.segment.row.file, []).append(link)
    return links


def _list_published(known: CatalogContents, limits: Limits) -> list[CheckpointRow]:
    return [row for row in known.checkpoints if row.state == "published" and is_on_lineage(row, limits)]


def _find_needed(segments: list[ScannedSegment], limits: Limits, oldest: int) -> dict[str, range]:
    """Return for each segment the sequence numbers that a recovery from the oldest checkpoint must find in it."""
    needed: dict[str, range] = {}
    later: int | None = None  # the base of the next segment
    for segment in sorted(segments, key=lambda segment: -segment.row.ordinal):
        row, heads = segment.row, [location.head for location in segment.locations]
        last = row.last_sequence if row.state == "sealed" else max((head.sequence for head in heads), default=0)
        base = heads[0].sequence - (heads[0].kind != EntryKind.SEGMENT) if heads else row.base_sequence
        end = min(number for number in (last, later, limits[row.timeline]) if number is not None)
        needed[row.file] = range(max(base, oldest) + 1, end + 1)
        if heads:
            later = base if later is None else min(later, base)
    return needed


def _verify_segment(segment: ScannedSegment, links: list[Link], needed: range) -> Iterator[Finding]:
    places: dict[int, bool] = {}  # by offset, whether an array is sound; several boundaries may share one
    first = segment.locations[0] if segment.locations else None
    before = first.head if first is not None and first.head.kind == EntryKind.SEGMENT else None
    if before is None and needed:
        what = "its first entry is damaged or missing"
        yield Problem(segment.path, what if first else f"no entry of segment {segment.row.segment_id} is in it")
    try:
        with SegmentReader(segment.path, uses_index=False) as reader:
            if first is not None and before is not None:
                yield from _verify_first(reader, first, segment.row)
            for link in links:
                if before is not None and link.sequence != before.sequence + 1 and link.sequence > needed.start:
                    yield _make_missing_problem(segment, before, link.sequence - 1)
                yield from _verify_entry(reader, link, places)
                before = link.location.head
    except (CorruptRecord, OSError) as error:
        yield Problem(segment.path, f"it cannot be opened ({error})")
    if before is not None and needed and before.sequence < needed[-1]:
        yield _make_missing_problem(segment, before, needed[-1])


def _make_missing_problem(segment: ScannedSegment, before: Head, last: int) -> Problem:
    first = before.sequence + 1
    what = f"entry {first} is damaged or missing" if first == last else f"entries {first} to {last} are damaged or missing"
    return Problem(segment.path, what, before.step + (before.kind in (EntryKind.SEGMENT, EntryKind.BOUNDARY)))


def _verify_first(reader: SegmentReader, location: Location, row: SegmentRow) -> Iterator[Finding]:
    try:
        body = reader.decode(location).body()
    except CorruptRecord as damage:
        yield Problem(reader.path, f"its first entry: {damage.why}")
        return
    found, listed = (body.get("ordinal"), body.get("timeline")) if isinstance(body, dict) else None, (row.ordinal, row.timeline)
    if found != listed:
        yield Problem(reader.path, f"its first entry names ordinal and timeline {found}, the catalog lists {listed}")


def _verify_entry(reader: SegmentReader, link: Link, places: dict[int, bool]) -> Iterator[Finding]:
    path, step = link.segment.path, link.step
    try:
        entry = reader.decode(link.location)
        for blob in entry.parts().values():
            tree.decode(blob, lambda _, layout: layout, make_array=lambda _: None)
        rows = entry.arrays()
    except CorruptRecord as damage:
        yield Problem(path, damage.why, step)
        return
    except tree.MalformedTree as error:
        yield Problem(path, f"its description is damaged ({error})", step)
        return
    nbytes = entry.head.description_bytes + entry.stored_bytes
    for name, why in entry.damaged_tensors():
        yield Problem(path, why, step, name)
    for row in rows:
        name, offset = row[:2]
        if offset not in places:
            places[offset] = reader.is_sound(row)
        if not places[offset]:
            yield Problem(path, "the checksum of its bytes differs", step, name)
    yield Checked(path, nbytes, entries=1, tensors=len(entry.layout))


def _verify_history(folder: Path, known: CatalogContents, history: History, limits: Limits) -> Iterator[Finding]:
    checkpoints = _list_published(known, limits)
    if history.runs and not checkpoints:
        yield Problem(folder / "checkpoints", "there is no checkpoint to recover from")
        return
    starts = {(row.sequence, int(row.chain, 16)) for row in checkpoints}
    oldest = max(min((row.sequence for row in checkpoints), default=0), known.pruned)  # holes before it are no damage
    before: Link | None = None
    for run in history.runs:
        first = run[0]
        is_start = (first.sequence - 1, first.location.head.chain) in starts or first.sequence - 1 <= oldest
        is_in_file = before is not None and before.segment is first.segment  # reported with the segment
        rows = [row for row in known.segments if row.state != "retired"]
        if not is_start and not is_in_file and not any(_is_gone(folder, row) for row in rows):
            what = f"entries before {first.sequence} are missing from the log: no checkpoint leads to it"
            yield Problem(first.segment.path, what, first.step)
        before = run[-1]
    steps = [link.step for run in history.runs for link in run if link.kind == EntryKind.BOUNDARY]
    last = max(steps + [row.step for row in checkpoints], default=0)
    if last < known.watermarks.committed:
        yield Problem(folder / "log", f"it ends at step {last}, but step {known.watermarks.committed} had been committed")
