"""Verification of a log: the segments, record by record, and the history that they form."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from ..base.errors import CorruptCatalog, CorruptRecord
from ..catalog import SegmentRow
from ..catalog.lineage import Limits, trace_lineage
from ..log.reader import SegmentReader
from ..log.record_format import EntryKind, Head, Location
from ..recovery.history import History, Link, ScannedSegment, build_history
from ..recovery.journal_facts import CatalogContents, read_catalog, read_unlisted, scan_segment, sort_newest_first
from .findings import Checked, Finding, Problem
from .listing import add_unlisted, is_retired, list_published


def verify_log(folder: Path, known: CatalogContents) -> Iterator[Finding]:
    """Check the log. Unsealed segments that seem damaged are checked twice, because a trainer may be writing them."""
    unsealed = {folder / "log" / row.file for row in known.segments if row.state in ("open", "ready")}
    needs_second_look = False
    for finding in _verify_once(folder, known):
        if isinstance(finding, Problem) and finding.path in unsealed:
            needs_second_look = True
        else:
            yield finding
    if needs_second_look:
        try:
            again = read_catalog(folder)
        except CorruptCatalog:
            again = CatalogContents()
        add_unlisted(again, read_unlisted(folder, again))
        yield from (one for one in _verify_once(folder, again) if isinstance(one, Problem) and one.path in unsealed)


def _verify_once(folder: Path, known: CatalogContents) -> Iterator[Finding]:
    """Check all segments of the newest lineage, and the history that they form."""
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
        for what in check_file(path, row):
            if not is_retired(folder, row):
                yield Problem(path, what)
    segments = [segment for segment in segments if segment.row.timeline in limits]
    history = build_history(segments, limits)
    links = _group_by_segment(history)
    needed = _find_needed(segments, limits, min((row.sequence for row in list_published(known, limits)), default=0))
    for segment in segments:
        for finding in verify_segment(segment, links.get(segment.row.file, []), needed[segment.row.file]):
            if isinstance(finding, Problem) and is_retired(folder, segment.row):
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
        base = heads[0].sequence - (heads[0].kind != EntryKind.SEGMENT) if heads else row.base_sequence
        end = min(number for number in (last, later, limits[row.timeline]) if number is not None)
        needed[row.file] = range(max(base, oldest) + 1, end + 1)
        if heads:
            later = base if later is None else min(later, base)
    return needed


def _verify_history(folder: Path, known: CatalogContents, history: History, limits: Limits) -> Iterator[Finding]:
    """Check that a checkpoint leads to each run of entries, and that the log reaches the committed step."""
    checkpoints = list_published(known, limits)
    if history.runs and not checkpoints:
        yield Problem(folder / "checkpoints", "there is no checkpoint to recover from")
        return
    starts = {(row.sequence, int(row.chain, 16)) for row in checkpoints}
    oldest = max(min((row.sequence for row in checkpoints), default=0), known.pruned)  # Earlier holes are not damage.
    before: Link | None = None
    for run in history.runs:
        first = run[0]
        is_start = (first.sequence - 1, first.location.head.chain) in starts or first.sequence - 1 <= oldest
        is_in_file = before is not None and before.segment is first.segment  # reported with the segment
        rows = [row for row in known.segments if row.state != "retired"]
        if not is_start and not is_in_file and not any(is_retired(folder, row) for row in rows):
            what = f"entries before {first.sequence} are missing from the log: no checkpoint leads to it"
            yield Problem(first.segment.path, what, first.step)
        before = run[-1]
    steps = [link.step for run in history.runs for link in run if link.kind.is_boundary]
    last = max(steps + [row.step for row in checkpoints], default=0)
    if last < known.watermarks.committed:
        yield Problem(folder / "log", f"it ends at step {last}, but step {known.watermarks.committed} had been committed")


def check_file(path: Path, row: SegmentRow) -> Iterator[str]:
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


def verify_segment(segment: ScannedSegment, links: list[Link], needed: range) -> Iterator[Finding]:
    """Check the entries of one segment.

    Args:
        segment: the segment.
        links: the entries in it that recovery may read.
        needed: the sequence numbers of the entries that must be in it.
    """
    first = segment.locations[0] if segment.locations else None
    before = first.head if first is not None and first.head.kind == EntryKind.SEGMENT else None
    if before is None and needed:
        what = "its first entry is damaged or missing"
        yield Problem(segment.path, what if first else f"no entry of segment {segment.row.segment_id} is in it")
    try:
        with SegmentReader(segment.path) as reader:
            if first is not None and before is not None:
                yield from _verify_first(reader, first, segment.row)
            for link in links:
                if before is not None and link.sequence != before.sequence + 1 and link.sequence > needed.start:
                    yield _make_missing_problem(segment, before, link.sequence - 1)
                yield from _verify_entry(reader, link)
                before = link.location.head
    except (CorruptRecord, OSError) as error:
        yield Problem(segment.path, f"it cannot be opened ({error})")
    if before is not None and needed and before.sequence < needed[-1]:
        yield _make_missing_problem(segment, before, needed[-1])


def _make_missing_problem(segment: ScannedSegment, before: Head, last: int) -> Problem:
    first = before.sequence + 1
    what = f"entry {first} is damaged or missing" if first == last else f"entries {first} to {last} are damaged or missing"
    return Problem(segment.path, what, before.step + (before.kind == EntryKind.SEGMENT or before.kind.is_boundary))


def _verify_first(reader: SegmentReader, location: Location, row: SegmentRow) -> Iterator[Finding]:
    try:
        body = reader.decode(location).body()
    except CorruptRecord as damage:
        yield Problem(reader.path, f"its first entry: {damage.why}")
        return
    found, listed = (body.get("ordinal"), body.get("timeline")) if isinstance(body, dict) else None, (row.ordinal, row.timeline)
    if found != listed:
        yield Problem(reader.path, f"its first entry names ordinal and timeline {found}, the catalog lists {listed}")


def _verify_entry(reader: SegmentReader, link: Link) -> Iterator[Finding]:
    try:
        entry = reader.decode(link.location)
    except CorruptRecord as damage:
        yield Problem(reader.path, damage.why, link.step)
        return
    for problem in entry.find_damage():
        yield Problem(reader.path, problem.why, link.step, problem.tensor)
    nbytes = entry.head.description_bytes + entry.stored_bytes
    yield Checked(reader.path, nbytes, entries=1, tensors=len(entry.layout))
