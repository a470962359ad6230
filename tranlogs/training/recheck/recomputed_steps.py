"""Steps that training computes again, because the log has no tensors of them: the comparison with their recorded boundaries."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from functools import cached_property
from typing import Any

from ...journal.record_writers import RecordContent, encode_body
from ...log.layout import Payload
from ...log.reader import Record, SegmentReader
from ...log.record_format import Position, RecordKind
from ...recovery.history import LastUnit, Link
from .comparison import Difference, compare_bodies
from .recheck import RecheckRecord
from .recorded_unit import RecordedEntry
from .unit_comparison import UnitComparison

PASSES = "passes"  # part of a boundary: number of boundaries between the newest step and this one, unless it is none


_BEFORE_A_STEP = ("rng", "data", "count", "loop", "position")  # parts of a boundary of which another one explains other weights


class RecomputedSteps(UnitComparison):
    """Compares what training computes again with the recorded boundaries.

    The auxiliary state at each recorded boundary is compared bit for bit, and the digest of weights and optimizer state.
    Boundaries between them, of which the log has no record, are passed over.
    """

    def __init__(self, unit: LastUnit, ignored: Collection[str] = (), timed: str | None = None) -> None:
        super().__init__(unit, ignored, timed)
        self._links, self._next = list(_find_ends(unit.links)), 0
        self._reader: SegmentReader | None = None

    @property
    def compared(self) -> int:
        """The number of steps that were computed up to the newest boundary that is equal."""
        return self.equal.step - self.unit.start.step

    def wants(self, step: int, passes: int) -> bool:
        """Return True if the boundary that comes now is a recorded one, or lies behind it."""
        return not self.is_over and (step, passes) >= self._expected

    @cached_property
    def end(self) -> Record:
        """The newest recorded boundary."""
        return self._read(self._links[-1])

    def _expected_step(self) -> int:
        return self._links[self._next].step

    def close(self) -> None:
        """Close the file that is read."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    # The interface of a writer of records.

    def begin(self, payload: Payload) -> RecheckRecord:
        """Take the gradients of a step: there is no record to compare them with."""
        _release(payload)
        return RecheckRecord()

    def commit(self, record: Any, content: RecordContent) -> None:
        """Take the rest of a step."""
        record.is_open = False

    def append(self, payload: Payload, content: RecordContent) -> None:
        """Compare a boundary that follows a step with its record."""
        _release(payload)
        if content.kind != RecordKind.BOUNDARY or self.is_over:
            return
        assert isinstance(content.body, dict)
        start, here = time.perf_counter(), (content.step, content.body.get(PASSES, 0))
        if here < self._expected:
            return
        link = self._links[self._next]
        self.difference = self._compare(content, link, is_here=here == self._expected)
        if self.difference is None:
            head = link.location.head
            self.equal = Position(head.sequence, head.step, head.digest, self.unit.end.timeline)
            self._next += 1
            self.__dict__.pop("_expected", None)
        self.is_over = self.difference is not None or self._next == len(self._links)
        self.seconds += time.perf_counter() - start

    @cached_property
    def _expected(self) -> tuple[int, int]:
        """The step of the next recorded boundary, and the number of boundaries between both."""
        link = self._links[self._next]
        return link.step, self._read(link).part(PASSES) or 0

    def _compare(self, content: RecordContent, link: Link, *, is_here: bool) -> Difference | None:
        if not is_here:
            return Difference(link.step, "order", "the loop", f"ends a batch with step {content.step} in place of this one")
        record = RecordedEntry(self._read(link), RecordKind.BOUNDARY)
        found = compare_bodies(encode_body(self._encoder, content), record, "state", self._ignored, self._timed)
        digests = record.entry.digests
        is_other = content.digests != digests and len(content.digests) == len(digests)
        if is_other and (found is None or not found.name.startswith(_BEFORE_A_STEP)):  # the rest may follow from it
            return Difference(link.step, "weights", "weights or optimizer state", "differ from the record after the step")
        return found

    def _read(self, link: Link) -> Record:
        if self._reader is None or self._reader.path != link.segment.path:
            self.close()
            self._reader = SegmentReader(link.segment.path, link.segment.locations)
        return self._reader.decode(link.location)


def _find_ends(links: Iterable[Link]) -> Iterable[Link]:
    """Yield the boundaries that follow a step."""
    has_step = False
    for link in links:
        has_step |= link.kind.is_step or bool(link.covered)
        if has_step and link.kind.is_boundary:
            yield link
            has_step = False


def _release(payload: Payload) -> None:
    if payload.wait is not None:
        payload.wait()
    if payload.release is not None:
        payload.release()
