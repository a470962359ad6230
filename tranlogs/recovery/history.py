"""History of a journal: the records of all segments and timelines, chained in order (pure, given scanned heads).

Training can compute the newest unit with a step again, to prove that it resumes exactly.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, overload

from ..catalog import CheckpointRow, SegmentRow
from ..catalog.rows import Limits
from ..log.record_format import Location, Position, RecordKind, Records

PASSES = "passes"  # part of a boundary: number of boundaries between the newest step and this one, unless it is none
_UNITS_MAX = 100  # units without a step that may follow the newest unit with one


@dataclass(frozen=True, slots=True)
class ScannedSegment:
    """A segment and the records that a scan found in it."""

    row: SegmentRow
    path: Path
    locations: Sequence[Location]


class Link(NamedTuple):
    """A record of the history, and the segment that holds it. A run has hundreds of thousands of links, so they are tuples."""

    location: Location
    segment: ScannedSegment

    @property
    def sequence(self) -> int:
        return self.location.head.sequence

    @property
    def step(self) -> int:
        return self.location.head.step

    @property
    def kind(self) -> RecordKind:
        return self.location.head.kind

    @property
    def covered(self) -> int:
        """The number of steps that the record covers without their tensors."""
        return self.location.head.covered

    def without_step(self) -> Link:
        """Return the boundary of a record alone, for a state that has the step which the record redoes."""
        if self.kind != RecordKind.UNIT:
            return self
        head = self.location.head._replace(kind=RecordKind.BOUNDARY)
        return Link(self.location._replace(head=head), self.segment)


class Run(Sequence[Link]):
    """Records that are chained without a hole. Links are made when they are asked for."""

    def __init__(self) -> None:
        self._pieces: list[tuple[ScannedSegment, int, int]] = []  # a segment, and which of its locations: from, up to
        self._ends: list[int] = []  # of the pieces, in the run

    @classmethod
    def join(cls, runs: Iterable[Run]) -> Run:
        """Return the records of several runs in one sequence."""
        found = cls()
        for run in runs:
            for piece in run._pieces:
                found.extend(*piece)
        return found

    def extend(self, segment: ScannedSegment, start: int, end: int) -> None:
        """Add records of a segment, given by their indices in it."""
        if start >= end:
            return
        total = len(self) + end - start
        if self._pieces and self._pieces[-1][0] is segment and self._pieces[-1][2] == start:
            start = self._pieces.pop()[1]
            self._ends.pop()
        self._pieces.append((segment, start, end))
        self._ends.append(total)

    def truncate(self, length: int) -> None:
        """Drop the records after the first `length` ones."""
        while len(self) > length:
            segment, start, end = self._pieces.pop()
            begin = self._ends.pop() - (end - start)
            self.extend(segment, start, start + length - begin)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Link: ...

    @overload
    def __getitem__(self, index: slice) -> Run: ...

    def __getitem__(self, index: int | slice) -> Link | Run:
        if isinstance(index, slice):
            return self._cut(*index.indices(len(self))[:2])
        index += len(self) if index < 0 else 0
        if not 0 <= index < len(self):
            raise IndexError(index)
        at = bisect.bisect_right(self._ends, index)
        segment, _, end = self._pieces[at]
        return Link(segment.locations[end - (self._ends[at] - index)], segment)

    def _cut(self, first: int, last: int) -> Run:
        found = Run()
        for (segment, start, end), total in zip(self._pieces, self._ends, strict=True):
            begin = total - (end - start)  # of the piece, in the run
            found.extend(segment, start + max(first - begin, 0), min(end, start + last - begin))
        return found

    def __iter__(self) -> Iterator[Link]:
        for segment, start, end in self._pieces:
            for location in _iterate(segment, start, end):
                yield Link(location, segment)

    def find_covered(self) -> int:
        """Return the index of the first record that covers steps without their tensors; the length of the run if none does."""
        for (segment, start, end), total in zip(self._pieces, self._ends, strict=True):
            locations = segment.locations
            if isinstance(locations, Records):
                found = locations.find_covered(start, end)
            else:
                found = next((i for i in range(start, end) if locations[i].head.covered), end)
            if found < end:
                return total - (end - found)
        return len(self)


def _iterate(segment: ScannedSegment, start: int, end: int) -> Iterable[Location]:
    locations = segment.locations
    return locations.iterate(start, end) if isinstance(locations, Records) else locations[start:end]


@dataclass(slots=True)
class History:
    """The chained records of a journal. Sequence numbers rise within a run of records, and from each run to the next.

    Attributes:
        holes: what is missing between them, one sentence each.
        refused: records that are not used although they are chained, because they name a step that cannot follow. With each,
            the step that it was to follow.
    """

    runs: list[Run] = field(default_factory=list)
    holes: list[str] = field(default_factory=list)
    refused: list[tuple[Link, int]] = field(default_factory=list)

    def after(self, checkpoint: CheckpointRow) -> Run:
        """Return the records after a checkpoint, up to the end of their run."""
        index, first = self.find_next(checkpoint)
        return self.runs[index][first:] if index >= 0 else Run()

    def after_position(self, position: Position) -> Run:
        """Return the records after a position, up to the end of their run."""
        index, first = self._find_follower(position.sequence, position.chain, position.step)
        return self.runs[index][first:] if index >= 0 else Run()

    def find_next(self, checkpoint: CheckpointRow) -> tuple[int, int]:
        """Return the index of the run that continues after a checkpoint, and of its next record; (-1, -1) if none does."""
        return self._find_follower(checkpoint.sequence, int(checkpoint.chain, 16), checkpoint.step)

    def _find_follower(self, sequence: int, chain: int, step: int) -> tuple[int, int]:
        for index, run in enumerate(self.runs):
            first = bisect.bisect_left(run, sequence + 1, key=_sequence)
            if first < len(run) and run[first].sequence == sequence + 1:
                head = run[first].location.head
                if head.chain == chain and head.can_follow(step):
                    return index, first
        return -1, -1


def build_history(segments: Iterable[ScannedSegment], limits: Limits) -> History:
    """Chain the records of a lineage.

    A later segment supersedes earlier ones: their records after its base were never committed, because a recovery ended
    before them, or belong to another timeline.
    """
    history = History()
    for segment in sorted(segments, key=lambda segment: segment.row.ordinal):
        if segment.row.timeline not in limits:
            continue
        limit = limits[segment.row.timeline]
        _supersede(history, segment)
        locations, last = segment.locations, history.runs[-1][-1] if history.runs else None
        for index, location in enumerate(locations):
            head = location.head
            if head.kind == RecordKind.SEGMENT or (limit is not None and head.sequence > limit):
                continue
            link = Link(location, segment)
            if last is not None:
                before = last.location.head
                if before.digest == head.chain and before.sequence + 1 == head.sequence:
                    if not head.can_follow(before.step):
                        history.refused.append((link, before.step))
                        continue
                elif head.sequence == before.sequence:
                    continue  # a second copy of the same record
                else:
                    history.holes.append(_describe_hole(last, link))
                    history.runs.append(Run())
            else:
                history.runs.append(Run())
            if isinstance(locations, Records) and locations.is_chained:  # then all that is left follows
                end = len(locations) if limit is None else min(len(locations), index + limit - head.sequence + 1)
                history.runs[-1].extend(segment, index, end)
                break
            history.runs[-1].extend(segment, index, index + 1)
            last = link
    return history


def without_unlogged_steps(history: History, checkpoints: Iterable[CheckpointRow]) -> History:
    """Return the history without the records that redo cannot reach from any checkpoint.

    These are the records from one that covers steps without their tensors up to the next checkpoint.
    """
    starts = {row.sequence for row in checkpoints}
    runs = list[Run]()
    for run in history.runs:
        left: Run | None = run
        while left is not None:
            end = left.find_covered()
            runs += [left[:end]] if end else []
            starting = (i + 1 for i in range(end, len(left)) if left[i].sequence in starts)
            start = next(starting, len(left))
            left = left[start:] if start < len(left) else None
    return History(runs, history.holes, history.refused)


@dataclass(frozen=True, slots=True)
class LastUnit:
    """The records from the last boundary before the newest step up to the newest boundary.

    Where the log has no tensors of the newest steps, they are the records behind the last step that can be redone.

    Attributes:
        start: the position before the first of them. It is that of a boundary or of a checkpoint.
    """

    start: Position
    end: Position
    links: tuple[Link, ...]

    @property
    def is_covered(self) -> bool:
        """True if the log does not have the tensors of all its steps."""
        return any(link.covered for link in self.links)


def find_last_unit(history: History, checkpoints: Iterable[CheckpointRow], end: Position) -> LastUnit | None:
    """Return the newest unit with a step before a position; None if the log does not hold it in full.

    Units without a step that follow it belong to it, since nothing could be compared in them but the auxiliary state. A unit
    with steps of which the log holds no tensors is none: it cannot be replaced by its record.
    """
    run, last = _find_record(history, end)
    if last < 0 or not run[last].kind.is_boundary or run[last].covered:
        return None
    has_step, units = run[last].kind.is_step, 1
    for i in range(last - 1, -1, -1):
        if run[i].kind.is_boundary:
            if has_step:
                head = run[i].location.head
                return LastUnit(
                    Position(head.sequence, head.step, head.digest, end.timeline), end, tuple(run[i + 1 : last + 1])
                )
            units += 1
            if units > _UNITS_MAX or run[i].covered:
                return None
        has_step |= run[i].kind.is_step
    first = run[0].location.head
    for row in checkpoints if has_step else ():
        if row.sequence == first.sequence - 1 and int(row.chain, 16) == first.chain:
            return LastUnit(Position(row.sequence, row.step, first.chain, end.timeline), end, tuple(run[: last + 1]))
    return None


def find_ends(links: Iterable[Link]) -> Iterable[Link]:
    """Yield the boundaries that follow a step."""
    has_step = False
    for link in links:
        has_step |= link.kind.is_step or bool(link.covered)
        if has_step and link.kind.is_boundary:
            yield link
            has_step = False


def _find_record(history: History, position: Position) -> tuple[Run, int]:
    """Return the run of records that holds the record at a position, and the index of that record; -1 if no run holds it."""
    for run in reversed(history.runs):
        i = bisect.bisect_left(run, position.sequence, key=_sequence)
        if i < len(run) and run[i].sequence == position.sequence and run[i].location.head.digest == position.chain:
            return run, i
    return Run(), -1


def _sequence(link: Link) -> int:
    return link.location.head.sequence


def _supersede(history: History, segment: ScannedSegment) -> None:
    """Drop the records after the base of a later segment."""
    heads = [location.head for location in segment.locations[:2]]
    if not heads:
        return
    base = min(head.sequence if head.kind == RecordKind.SEGMENT else head.sequence - 1 for head in heads)
    while history.runs:
        run = history.runs[-1]
        if run[-1].sequence > base:
            run.truncate(bisect.bisect_right(run, base, key=_sequence))
        if run:
            return
        history.runs.pop()


def _describe_hole(last: Link, link: Link) -> str:
    if last.segment is link.segment:
        return (
            f"{link.segment.path}: records {last.sequence + 1} to {link.sequence - 1} (after step {last.step}) are "
            "damaged or missing"
        )
    return (
        f"between {last.segment.path.name} and {link.segment.path.name}: steps {last.step + 1} to {link.step - 1} "
        "are not in the log"
    )
