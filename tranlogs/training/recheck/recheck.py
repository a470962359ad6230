"""The recheck: it stands in the place of the log while training computes the newest unit before the crash again."""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from ...encoding import tree
from ...journal.record_writers import RecordContent, encode_body
from ...log.layout import Payload
from ...log.reader import Record
from ...log.record_format import RecordKind
from ...recovery.history import LastUnit
from .comparison import Difference, Kind, compare_bodies, compare_payloads
from .recorded_unit import RecordedEntry, RecordedUnit
from .unit_comparison import UnitComparison

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
            encoded = encode_body(self._encoder, content)
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
