"""The history of a journal: which entries follow which, over all segments and timelines (pure, given scanned heads)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..catalog import SegmentRow
from ..lineage import Limits
from ..log.record import EntryKind, Location


@dataclass(frozen=True, slots=True)
class ScannedSegment:
    """A segment and the heads found in it, by sequence number."""

    row: SegmentRow
    path: Path
    locations: Sequence[Location]


@dataclass(frozen=True, slots=True)
class Link:
    """One entry of the history and where it lies."""

    location: Location
    segment: ScannedSegment

    @property
    def sequence(self) -> int:
        return self.location.head.sequence

    @property
    def step(self) -> int:
        return self.location.head.step

    @property
    def kind(self) -> EntryKind:
        return self.location.head.kind


@dataclass(slots=True)
class History:
    """Runs of entries, each chained without a hole; `holes` says what separates them."""

    runs: list[list[Link]] = field(default_factory=list)
    holes: list[str] = field(default_factory=list)

    def after(self, sequence: int, chain: int) -> list[Link]:
        """The entries that follow the entry `sequence` with digest `chain`, up to the end of their run."""
        for run in self.runs:
            for i, link in enumerate(run):
                if link.sequence == sequence + 1:
                    if link.location.head.chain == chain:
                        return run[i:]
                    break
                if link.sequence > sequence + 1:
                    break
        return []


def build_history(segments: Iterable[ScannedSegment], limits: Limits) -> History:
    """Chain the entries of a lineage.

    A later segment supersedes: what an earlier one holds behind the later one's base was never committed (recovery
    landed before it), or belongs to another timeline.
    """
    history = History()
    for segment in sorted(segments, key=lambda segment: segment.row.ordinal):
        if segment.row.timeline not in limits:
            continue
        limit = limits[segment.row.timeline]
        _supersede(history, segment)
        for location in segment.locations:
            head = location.head
            if head.kind == EntryKind.SEGMENT or (limit is not None and head.sequence > limit):
                continue
            _chain(history, Link(location, segment))
    for timeline, limit in limits.items():
        if limit is not None:
            _cut(history, lambda link, t=timeline, m=limit: link.segment.row.timeline == t and link.sequence > m)
    return history


def _supersede(history: History, segment: ScannedSegment) -> None:
    bases = [location.head.sequence for location in segment.locations if location.head.kind == EntryKind.SEGMENT]
    firsts = [location.head.sequence - 1 for location in segment.locations if location.head.kind != EntryKind.SEGMENT]
    if not bases and not firsts:
        return
    base = min(bases + firsts)
    _cut(history, lambda link: link.sequence > base)


def _cut(history: History, gone: object) -> None:
    assert callable(gone)
    kept = [[link for link in run if not gone(link)] for run in history.runs]
    history.runs = [run for run in kept if run]


def _chain(history: History, link: Link) -> None:
    head = link.location.head
    last = history.runs[-1][-1] if history.runs else None
    if last is not None and last.location.head.sequence + 1 == head.sequence and last.location.head.digest == head.chain:
        history.runs[-1].append(link)
        return
    if last is not None:
        if head.sequence == last.sequence:
            return  # a second copy of the same entry
        if last.segment is link.segment:
            history.holes.append(
                f"{link.segment.path}: entries {last.sequence + 1} to {head.sequence - 1} (after step {last.step}) are "
                "damaged or missing"
            )
        else:
            history.holes.append(
                f"between {last.segment.path.name} and {link.segment.path.name}: steps {last.step + 1} to {head.step - 1} "
                "are not in the log"
            )
    history.runs.append([link])
