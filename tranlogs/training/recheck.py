"""Comparisons of what training computes again after a crash with the log. Each stands in the place of the log meanwhile.

`Recheck` compares the newest unit, of which the log has the tensors. `RecomputedSteps` compares steps of which it has none with
their recorded boundaries.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property
from typing import Any

from ..encoding import tree
from ..journal.record_writers import RecordContent, encode_content
from ..log.layout import Payload
from ..log.reader import Record, SegmentReader
from ..log.record_body import BodyEncoder
from ..log.record_format import Position, RecordKind
from ..recovery.history import PASSES, LastUnit, Link, find_ends
from .comparison import Difference, Kind, RecordedEntry, RecordedUnit, compare_bodies, compare_payloads


class UnitComparison(ABC):
    """Compares what training computes again with the log. It is a writer of records that writes nothing.

    Args:
        unit: the recorded unit. Its files stay open until `close`.
        ignored: parts of the body of a boundary, and paths in them, that are not compared, since each process has its own.
        timed: prefix of the parts of a boundary in which numbers may be times that the script has measured.

    Attributes:
        difference: the first difference; None as long as there is none.
        is_over: True once the unit was computed to its end, or something differed.
        equal: position of the newest boundary that is equal; the one where recovery has landed, as long as there is none.
        seconds: the time that the comparison took.
    """

    def __init__(self, unit: LastUnit, ignored: Collection[str] = (), timed: str | None = None) -> None:
        self._ignored = ignored if isinstance(ignored, set) else set(ignored)  # a set may grow meanwhile
        self.unit, self._timed = unit, timed
        self.difference: Difference | None = None
        self.is_over = False
        self.equal: Position = unit.start
        self.seconds = 0.0
        self._encoder = BodyEncoder()

    @property
    def is_equal(self) -> bool:
        """True if the unit was computed to its end, and equals its record."""
        return self.is_over and self.difference is None

    @property
    @abstractmethod
    def end(self) -> Record:
        """The boundary that ends the recorded unit."""

    @property
    @abstractmethod
    def compared(self) -> int:
        """The number of steps that are equal."""

    def wants(self, step: int, passes: int) -> bool:
        """Return True if the boundary that comes now is a recorded one.

        Args:
            step: the newest step.
            passes: number of boundaries between that step and this one.
        """
        return True

    def position_at(self, step: int) -> Position:
        """Return the position of a boundary that is equal, by its step."""
        assert step == self.equal.step
        return self.equal

    def read_ahead(self) -> None:  # noqa: B027
        """Read what is compared first in another thread, while the script goes to its loop and computes."""

    def ignore(self, paths: Collection[str]) -> None:
        """Do not compare these paths in the bodies of boundaries."""
        self._ignored.update(paths)

    def read_recorded(self, part: str) -> Any:
        """Return a part of the boundary that ends the unit; None if it has no such part."""
        return self.end.part(part)

    def fail(self, name: str, text: str) -> None:
        """End the comparison where it is, and note how it differs from the record, unless something differed before."""
        self.difference = self.difference or Difference(self._expected_step(), "order", name, text)
        self.is_over = True

    @abstractmethod
    def _expected_step(self) -> int:
        """Return the step of the record that comes next."""

    @abstractmethod
    def close(self) -> None:
        """Close the files of the recorded unit."""

    # The interface of a writer of records.

    @abstractmethod
    def begin(self, payload: Payload) -> Any:
        """Take the gradients of the next step. The step may still be dropped."""

    @abstractmethod
    def commit(self, record: Any, content: RecordContent) -> None:
        """Take the rest of a step."""

    @abstractmethod
    def append(self, payload: Payload, content: RecordContent) -> None:
        """Take a whole record."""


_ASIDE_BYTES = 256 << 10  # gradients of this size are compared in another thread, while the optimizer steps
_OF_THE_LOG = ("fingerprint", "halved")  # keys of the body of a step that describe how it was taken and logged
_NAMES = {RecordKind.STEP: "a step", RecordKind.IMAGE: "weights that no step wrote", RecordKind.BOUNDARY: "the end of a batch"}


class Recheck(UnitComparison):
    """Compares the records of the newest unit with those of the log.

    Gradients, settings of the optimizers, fingerprints of the weights and the auxiliary state at each boundary are compared bit
    for bit. The first difference is kept; the unit then ends with the next boundary.
    """

    def __init__(self, unit: LastUnit, ignored: Collection[str] = (), timed: str | None = None) -> None:
        super().__init__(unit, ignored, timed)
        self._steps, self._next, self._has_begun = 0, 0, False
        self._recorded = RecordedUnit(unit)
        self._records = self._recorded.entries

    @property
    def end(self) -> Record:
        """The boundary that ends the recorded unit."""
        return self._records[-1].entry

    @property
    def compared(self) -> int:
        """The number of steps that are equal."""
        return self._steps

    def _expected_step(self) -> int:
        return self.end.step

    def read_ahead(self) -> None:
        """Read the recorded unit in another thread, while the script goes to its loop and computes."""
        self._recorded.read_ahead()

    def close(self) -> None:
        """Close the files of the recorded unit."""
        self._recorded.close()

    # The interface of a writer of records.

    def begin(self, payload: Payload) -> RecheckRecord:
        """Compare the gradients of the next step with the record. The step may still be dropped."""
        start = time.perf_counter()
        record, expected = RecheckRecord(), self._expected_for(payload)
        if expected is not None and expected.kind == RecordKind.STEP and expected.body()["record"] == "gradients":
            if payload.nbytes >= _ASIDE_BYTES:
                record.comparison = self._recorded.aside(_compare, payload, expected, "gradients")
            else:
                record.difference = _compare(payload, expected, "gradients")
        elif payload.release is not None:
            payload.release()
        self.seconds += time.perf_counter() - start
        return record

    def commit(self, record: Any, content: RecordContent) -> None:
        """Compare the rest of a step with the record."""
        assert isinstance(record, RecheckRecord)
        record.wait()
        self.seconds += record.seconds
        record.is_open = False
        self._compare(None, content, record.difference)

    def append(self, payload: Payload, content: RecordContent) -> None:
        """Compare a whole record; the scalars of the loop are not compared, since they may be times."""
        self._compare(payload, content, None)

    # The comparison.

    def _expected(self) -> RecordedEntry | None:
        """Return the record that is next; None once something differed."""
        return None if self.difference is not None or self.is_over else self._records[self._next]

    def _expected_for(self, payload: Payload) -> RecordedEntry | None:
        """Return the record of a step that is begun: two optimizers may both clip before the first one steps."""
        expected, names = self._expected(), payload.layout.names
        if expected is None:
            return None
        steps = (one for one in self._records[self._next :] if one.kind == RecordKind.STEP)
        return next((one for one in steps if one.entry.layout.names == names), expected)

    def _compare(self, payload: Payload | None, content: RecordContent, found: Difference | None) -> None:
        start, record, kind = time.perf_counter(), self._expected(), content.kind
        entry = None if record is None else record.entry
        if record is None or entry is None:
            if payload is not None and payload.release is not None:
                payload.release()
        elif kind == RecordKind.BOUNDARY and record.kind != kind and self._next == 0 and not self._has_begun:
            self._has_begun = True  # the boundary where recovery has landed: some loops commit it once more as they begin
            self.seconds += time.perf_counter() - start
            return
        elif record.kind != kind:
            text = f"computes {_NAMES[kind]} where the record has {_NAMES[record.kind]}"
            self.difference = Difference(entry.step, "order", "the loop", text)
        else:
            self.difference = found or self._find(record, payload, content)
            if self.difference is not None and kind == RecordKind.IMAGE:
                self.difference = replace(self.difference, step=self._find_next_step())
            self._next += 1
            self._steps += kind == RecordKind.STEP and self.difference is None
        if kind == RecordKind.BOUNDARY:
            self.is_over = self.difference is not None or self._next == len(self._records)
        self.seconds += time.perf_counter() - start

    def _find_next_step(self) -> int:
        """Return the number of the step before which weights were written."""
        return next((one.entry.step for one in self._records[self._next :] if one.kind == RecordKind.STEP), self.end.step)

    def _find(self, record: RecordedEntry, payload: Payload | None, content: RecordContent) -> Difference | None:
        """Return the first difference from a record of the same kind."""
        entry, body, digests = record.entry, content.body, content.digests
        if record.kind == RecordKind.BOUNDARY:
            encoded = encode_content(self._encoder, content).body
            return compare_bodies(encoded, record, "state", self._ignored, self._timed)
        plain, recorded = body.value if isinstance(body, tree.Fixed) else body, record.body()
        is_same_form = plain.get("record") == recorded.get("record")
        if payload is not None and is_same_form and (found := _compare(payload, record, "weights")) is not None:
            return found
        if is_same_form:
            found = compare_bodies(self._encoder.whole(body, content.adapt), record, "settings", _OF_THE_LOG)
            if found is not None:
                return found
        is_comparable = plain.get("fingerprint") == recorded.get("fingerprint")
        if is_comparable and digests != entry.digests and len(digests) == len(entry.digests):
            return Difference(entry.step, "weights", "the weights", "differ from the record after the step")
        return None  # where one process logged the state after the step and the other did not, the weights alone are compared


class RecheckRecord:
    """The record of a step whose gradients are compared, large ones while the optimizer steps.

    Attributes:
        comparison: what another thread is doing; None if nothing is left to wait for.
        seconds: the time that was spent waiting.
    """

    def __init__(self) -> None:
        self.is_open = True
        self.difference: Difference | None = None
        self.comparison: Future[Difference | None] | None = None
        self.seconds = 0.0

    def wait(self) -> None:
        """Wait until the gradients are compared."""
        comparison, self.comparison = self.comparison, None
        if comparison is not None:
            start = time.perf_counter()
            self.difference = comparison.result()
            self.seconds += time.perf_counter() - start

    def abort(self) -> None:
        """Drop the record."""
        self.wait()
        self.is_open = False


def _compare(payload: Payload, record: RecordedEntry, kind: Kind) -> Difference | None:
    if payload.wait is not None:
        payload.wait()
    try:
        return compare_payloads(payload, record, kind)
    finally:
        if payload.release is not None:
            payload.release()


_BEFORE_A_STEP = ("rng", "data", "count", "loop", "position")  # parts of a boundary of which another one explains other weights


class RecomputedSteps(UnitComparison):
    """Compares what training computes again with the recorded boundaries.

    The auxiliary state at each recorded boundary is compared bit for bit, and the digest of weights and optimizer state.
    Boundaries between them, of which the log has no record, are passed over.
    """

    def __init__(self, unit: LastUnit, ignored: Collection[str] = (), timed: str | None = None) -> None:
        super().__init__(unit, ignored, timed)
        self._links, self._next = list(find_ends(unit.links)), 0
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
            self.equal = self._position_of(link)
            self._next += 1
            self.__dict__.pop("_expected", None)
        self.is_over = self.difference is not None or self._next == len(self._links)
        self.seconds += time.perf_counter() - start

    def position_at(self, step: int) -> Position:
        """Return the position of a boundary that is equal, by its step: that of the landing, or of a recorded boundary."""
        if step == self.unit.start.step:
            return self.unit.start
        return next(self._position_of(link) for link in self._links[: self._next] if link.step == step)

    def _position_of(self, link: Link) -> Position:
        head = link.location.head
        return Position(head.sequence, head.step, head.digest, self.unit.end.timeline)

    @cached_property
    def _expected(self) -> tuple[int, int]:
        """The step of the next recorded boundary, and the number of boundaries between both."""
        link = self._links[self._next]
        return link.step, self._read(link).part(PASSES) or 0

    def _compare(self, content: RecordContent, link: Link, *, is_here: bool) -> Difference | None:
        if not is_here:
            return Difference(link.step, "order", "the loop", f"ends a batch with step {content.step} in place of this one")
        record = RecordedEntry(self._read(link), RecordKind.BOUNDARY)
        found = compare_bodies(encode_content(self._encoder, content).body, record, "state", self._ignored, self._timed)
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


def _release(payload: Payload) -> None:
    if payload.wait is not None:
        payload.wait()
    if payload.release is not None:
        payload.release()
