"""Verification of a journal: every checksum, every chain, every byte of log and checkpoints, and the catalog against the files.

Files are read by plain reads, and LMDB opens a catalog only after a check of its structure. So no content can end the process
or raise an error: damage is reported as a `Problem`. Records that recovery cannot reach any more are not checked: those after
the fork of another timeline, and those that a power cut tore off. Records before the oldest checkpoint may be missing. The run
may be written during the verification: a file that is retired while it is read is not a problem.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .base.errors import CorruptCatalog, CorruptCheckpoint, CorruptRecord, LogUnavailable, UnknownFormat
from .catalog import CATALOG_NAME, Catalog, CheckpointRow, SegmentRow, Tables
from .catalog.rows import Limits, is_on_lineage
from .checkpoints import Checkpoint
from .checkpoints.folder import MANIFEST
from .journal.owner_lock import read_owner
from .log.reader import SegmentReader
from .log.record_format import Head, Location, RecordKind
from .log.record_rows import read_records
from .log.scanner import scan
from .recovery.history import History, Link, ScannedSegment, build_history
from .recovery.journal_facts import JournalRows, read_rows, scan_segment, sort_newest_first
from .recovery.recovery_plan import describe_refused


@dataclass(frozen=True, slots=True)
class Problem:
    """Damage to a file; `what` is how the file differs from what was written.

    The step that is affected is None if it is unknown, the tensor also if no single one is affected.
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
    """A part of a file that was checked, whether it is sound or not, with the numbers of bytes, records and tensors in it."""

    path: Path
    nbytes: int
    records: int = 0
    tensors: int = 0


Finding = Problem | Checked


def verify_journal(folder: Path) -> Iterator[Finding]:
    """Check the journal in a folder. Yield the parts that were checked, and the damage."""
    try:
        yield from _verify(folder)
    except UnknownFormat as error:
        yield Problem(Path(str(error.path)), error.why)


def _verify(folder: Path) -> Iterator[Finding]:
    catalog, known = folder / CATALOG_NAME, read_rows(folder)
    if known.damage is not None:
        yield Problem(catalog, known.damage.why)
    newest, owner = max((row.ordinal for row in known.segments if row.file in known.listed), default=0), read_owner(folder)
    for row in known.unlisted.segments if known.listed else ():
        # A kill between the name of the newest file and its row is ordinary.
        if row.ordinal < newest or owner is None or owner.has_closed:
            yield Problem(catalog, f"it does not list segment {row.file}, which reaches step {row.last_step}")
    for name, why in known.unlisted.foreign.items():
        yield Problem(folder / "checkpoints" / name, why)
    yield from _verify_checkpoints(folder, known)
    if known.damage is None:
        yield from _verify_catalog(folder, known)
    yield from _verify_log(folder, known)


def _verify_checkpoints(folder: Path, known: JournalRows) -> Iterator[Finding]:
    """Check all bytes of all checkpoints, listed or not, except retired ones."""
    rows = {row.name: row for row in known.checkpoints}
    names = set(rows) | {path.name for path in (folder / "checkpoints").glob("step-*")}
    for name in sorted(names):
        row = rows.get(name)
        if row is not None and row.state == "retired":
            continue
        for finding in _verify_checkpoint(folder / "checkpoints" / name, row):
            if isinstance(finding, Problem) and row is not None and _is_retired(folder, row):
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


def _verify_catalog(folder: Path, known: JournalRows) -> Iterator[Finding]:
    """Decode all rows of the catalog, and compare those of records with the segments.

    Records without a row are no problem: recovery scans for them.
    """
    try:
        with Catalog.open(folder) as catalog:
            catalog.read(Tables.check)
            yield Checked(catalog.path, catalog.path.stat().st_size)
            for row in known.segments:
                if row.state != "retired" and row.file in known.listed:
                    yield from _compare(catalog, folder / "log" / row.file, row)
    except CorruptCatalog as error:
        yield Problem(folder / CATALOG_NAME, error.why)
    except LogUnavailable:
        return


def _compare(catalog: Catalog, path: Path, row: SegmentRow) -> Iterator[Finding]:
    """Yield the records in which the catalog differs from a segment."""
    # Read first: records that are written meanwhile are in the segment only.
    listed = catalog.read(lambda tables: read_records(tables, row.ordinal))
    try:
        found = {one.head.sequence: one for one in scan(path, row.number) if one.head.kind != RecordKind.SEGMENT}
    except OSError:
        return
    listed = [one for one in listed if one.head.kind != RecordKind.SEGMENT]
    for location in listed:
        there = found.get(location.head.sequence)
        if location.head.segment_id != row.number or (there is not None and there != location):
            yield Problem(
                catalog.path, f"record {location.head.sequence} differs from the one in {path.name}", location.head.step
            )
    newest = max(found, default=-1)
    lost = [one.head for one in listed if one.head.sequence > newest]
    if lost and row.state != "sealed":  # where a sealed segment ends is known from its row
        yield Problem(path, f"record {lost[0].sequence} and later ones are in the catalog, but not in the file", lost[0].step)


# The log.


def _verify_log(folder: Path, known: JournalRows) -> Iterator[Finding]:
    """Check the log. Unsealed segments that seem damaged are checked twice, because a trainer may be writing them."""
    unsealed = {folder / "log" / row.file for row in known.segments if row.state in ("open", "ready")}
    needs_second_look = False
    for finding in _verify_once(folder, known):
        if isinstance(finding, Problem) and finding.path in unsealed:
            needs_second_look = True
        else:
            yield finding
    if needs_second_look:
        again = _verify_once(folder, read_rows(folder))
        yield from (one for one in again if isinstance(one, Problem) and one.path in unsealed)


def _verify_once(folder: Path, known: JournalRows) -> Iterator[Finding]:
    """Check all segments of the newest lineage, and the history that they form."""
    limits, segments = known.limits, []
    for row in sort_newest_first(known.segments):
        if row.state == "retired" or (row.state != "ready" and row.timeline not in limits):
            continue
        path, notes = folder / "log" / row.file, list[str]()
        segment = scan_segment(path, row, notes, known.timeline)
        if segment is not None:
            segments.append(segment)
        for what in _check_file(path, row):
            if not _is_retired(folder, row):
                yield Problem(path, what)
    segments = [segment for segment in segments if segment.row.timeline in limits]
    history = build_history(segments, limits)
    links = _group_by_segment(history)
    needed = _find_needed(segments, limits, min((row.sequence for row in _list_published(known, limits)), default=0))
    for segment in segments:
        for finding in _verify_segment(segment, links.get(segment.row.file, []), needed[segment.row.file]):
            if isinstance(finding, Problem) and _is_retired(folder, segment.row):
                break
            yield finding
    yield from _verify_history(folder, known, history, limits)


def _group_by_segment(history: History) -> dict[str, list[Link]]:
    links: dict[str, list[Link]] = {}
    for link in itertools.chain.from_iterable(history.runs):
        links.setdefault(link.segment.row.file, []).append(link)
    return links


def _find_needed(segments: list[ScannedSegment], limits: Limits, oldest: int) -> dict[str, range]:
    """Return for each segment the sequence numbers that a recovery from the oldest checkpoint must find in it."""
    needed: dict[str, range] = {}
    later: int | None = None  # the base of the next segment
    for segment in sorted(segments, key=lambda segment: -segment.row.ordinal):
        row, heads = segment.row, [location.head for location in segment.locations]
        last = row.last_sequence if row.state == "sealed" else max((head.sequence for head in heads), default=0)
        base = heads[0].sequence - (heads[0].kind != RecordKind.SEGMENT) if heads else row.base_sequence
        end = min(number for number in (last, later, limits[row.timeline]) if number is not None)
        needed[row.file] = range(max(base, oldest) + 1, end + 1)
        if heads:
            later = base if later is None else min(later, base)
    return needed


def _verify_history(folder: Path, known: JournalRows, history: History, limits: Limits) -> Iterator[Finding]:
    """Check that a checkpoint leads to each run of records, and that the log reaches the committed step."""
    checkpoints = _list_published(known, limits)
    if history.runs and not checkpoints:
        yield Problem(folder / "checkpoints", "there is no checkpoint to recover from")
        return
    for link, step in history.refused:
        yield Problem(link.segment.path, describe_refused(link, step), link.step)
    starts = {(row.sequence, int(row.chain, 16)) for row in checkpoints}
    oldest = max(min((row.sequence for row in checkpoints), default=0), known.pruned)  # Earlier holes are not damage.
    before: Link | None = None
    for run in history.runs:
        first = run[0]
        is_start = (first.sequence - 1, first.location.head.chain) in starts or first.sequence - 1 <= oldest
        is_in_file = before is not None and before.segment is first.segment  # reported with the segment
        rows = [row for row in known.segments if row.state != "retired"]
        if not is_start and not is_in_file and not _is_retired(folder, *rows):
            what = f"records before {first.sequence} are missing from the log: no checkpoint leads to it"
            yield Problem(first.segment.path, what, first.step)
        before = run[-1]
    steps = [link.step for run in history.runs for link in run if link.kind.is_boundary]
    last = max(steps + [row.step for row in checkpoints], default=0)
    if last < known.watermarks.committed:
        yield Problem(folder / "log", f"it ends at step {last}, but step {known.watermarks.committed} had been committed")


def _check_file(path: Path, row: SegmentRow) -> Iterator[str]:
    """Check that a segment's file can be read and has the right size; yield problems."""
    try:
        size = path.stat().st_size
        os.close(os.open(path, os.O_RDONLY))
    except OSError as error:
        if row.state != "ready":
            yield f"the catalog lists it, but it cannot be read ({error.strerror})"
        return
    if size != row.size and not (row.state in ("ready", "open") and size > row.size):  # a long record may have enlarged it
        yield f"it has {size} bytes, expected {row.size}"


def _verify_segment(segment: ScannedSegment, links: list[Link], needed: range) -> Iterator[Finding]:
    """Check the records of one segment.

    Recovery may read the records of `links`. The records with the sequence numbers `needed` must be in the segment.
    """
    first = segment.locations[0] if segment.locations else None
    before = first.head if first is not None and first.head.kind == RecordKind.SEGMENT else None
    if before is None and needed:
        what = "its first record is damaged or missing"
        yield Problem(segment.path, what if first else f"no record of segment {segment.row.segment_id} is in it")
    try:
        with SegmentReader(segment.path) as reader:
            if first is not None and before is not None:
                yield from _verify_first(reader, first, segment.row)
            for link in links:
                if before is not None and link.sequence != before.sequence + 1 and link.sequence > needed.start:
                    yield _make_missing_problem(segment, before, link.sequence - 1)
                yield from _verify_record(reader, link)
                before = link.location.head
    except (CorruptRecord, OSError) as error:
        yield Problem(segment.path, f"it cannot be opened ({error})")
    if before is not None and needed and before.sequence < needed[-1]:
        yield _make_missing_problem(segment, before, needed[-1])


def _make_missing_problem(segment: ScannedSegment, before: Head, last: int) -> Problem:
    first = before.sequence + 1
    what = f"record {first} is damaged or missing" if first == last else f"records {first} to {last} are damaged or missing"
    return Problem(segment.path, what, before.step + (before.kind == RecordKind.SEGMENT or before.kind.is_boundary))


def _verify_first(reader: SegmentReader, location: Location, row: SegmentRow) -> Iterator[Finding]:
    try:
        body = reader.decode(location).body()
    except CorruptRecord as damage:
        yield Problem(reader.path, f"its first record: {damage.why}")
        return
    found, listed = (body.get("ordinal"), body.get("timeline")) if isinstance(body, dict) else None, (row.ordinal, row.timeline)
    if found != listed:
        yield Problem(reader.path, f"its first record names ordinal and timeline {found}, the catalog lists {listed}")


def _verify_record(reader: SegmentReader, link: Link) -> Iterator[Finding]:
    try:
        record = reader.decode(link.location)
    except CorruptRecord as damage:
        yield Problem(reader.path, damage.why, link.step)
        return
    for problem in record.find_damage():
        yield Problem(reader.path, problem.why, link.step, problem.tensor)
    nbytes = record.head.description_bytes + record.stored_bytes
    yield Checked(reader.path, nbytes, records=1, tensors=len(record.layout))


# Rows.


def _list_published(known: JournalRows, limits: Limits) -> list[CheckpointRow]:
    """Return the published checkpoints on a lineage."""
    return [row for row in known.published if is_on_lineage(row, limits)]


def _is_retired(folder: Path, *rows: SegmentRow | CheckpointRow) -> bool:
    """Return True if the file of one of the rows was retired after the row was read, by a trainer or a monitor."""
    now = read_rows(folder)
    if now.damage is not None:
        return False
    names = {row.name for row in now.published} | {row.file for row in now.segments if row.state != "retired"}
    return not names.issuperset(row.name if isinstance(row, CheckpointRow) else row.file for row in rows)
