"""Verification of one segment: its file, and every entry that recovery may read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..base.errors import CorruptRecord
from ..catalog import SegmentRow
from ..encoding import tree
from ..log.reader import SegmentReader
from ..log.record_format import EntryKind, Head, Location
from ..recovery.history import Link, ScannedSegment
from .findings import Checked, Finding, Problem


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
    places: dict[int, bool] = {}  # by offset, whether an array is sound; several boundaries may share one
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
                yield from _verify_entry(reader, link, places)
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
    for name, row in rows:
        offset = row[0]
        if offset not in places:
            places[offset] = reader.is_sound(row)
        if not places[offset]:
            yield Problem(path, "the checksum of its bytes differs", step, name)
    yield Checked(path, nbytes, entries=1, tensors=len(entry.layout))
