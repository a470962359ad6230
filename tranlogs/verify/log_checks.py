"""Verification of a log: the segments, and the history that they form."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from ..base.errors import CorruptCatalog
from ..catalog.lineage import Limits, trace_lineage
from ..log.record_format import EntryKind
from ..recovery.history import History, Link, ScannedSegment, build_history
from ..recovery.journal_facts import CatalogContents, read_catalog, read_unlisted, scan_segment, sort_newest_first
from .findings import Finding, Problem
from .listing import add_unlisted, is_retired, list_published
from .segments import check_file, verify_segment


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
