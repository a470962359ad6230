"""Whether a store is usable, found out by using it, and what to do where it is not.

An object is written, looked at, read back, waited for until it is durable, and deleted. What can be done about a problem, the
store says.
"""

from __future__ import annotations

import io
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from ..base.config import MIB, STORE_CHECK_SECONDS
from ..base.errors import CorruptObject, TranLogsError
from .base import ObjectStatus, Store

_POLL_SECONDS = 0.05
_TURNS = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `remedy` says what to do if it is not as it should be."""

    what: str
    is_good: bool
    remedy: str = ""


@dataclass(slots=True)
class StoreReport:
    """What was found. Times are in seconds, rates in bytes a second; None where it did not come to that.

    Attributes:
        round_trip_seconds: median time of asking for the status of an object.
        durable_seconds: from the end of a write to being durable.
    """

    url: str
    findings: list[Finding] = field(default_factory=list)
    round_trip_seconds: float | None = None
    write_rate: float | None = None
    read_rate: float | None = None
    durable_seconds: float | None = None

    @property
    def is_usable(self) -> bool:
        """Whether all is as it should be."""
        return all(finding.is_good for finding in self.findings)


def check_store(
    store: Store,
    *,
    nbytes: int = 32 * MIB,
    patience_seconds: float = STORE_CHECK_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> StoreReport:
    """Use a store as the archiver does, with an object of `nbytes` bytes, which is deleted in the end.

    `patience_seconds` is how long to wait for it to become durable. Faults are findings; nothing is raised.
    """
    report = StoreReport(store.url)
    name = f"tranlogs-check-{secrets.token_hex(8)}"
    checking = _Checking(store, name, report, nbytes, patience_seconds, clock, sleep)
    for finding in _until_bad(checking.findings()):
        report.findings.append(finding if finding.is_good else replace(finding, remedy=store.advice(finding.what)))
    try:
        store.delete(name)
    except TranLogsError as error:
        if report.is_usable:
            report.findings.append(Finding(str(error), False, store.advice(str(error))))
    return report


def _until_bad(findings: Iterator[Finding]) -> Iterator[Finding]:
    """An error is a bad finding, and nothing comes after one."""
    try:
        for finding in findings:
            yield finding
            if not finding.is_good:
                return
    except TranLogsError as error:
        yield Finding(str(error), False)


class _Checking:
    def __init__(
        self,
        store: Store,
        name: str,
        report: StoreReport,
        nbytes: int,
        patience_seconds: float,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._name = name
        self._store, self._report, self._patience_seconds = store, report, patience_seconds
        self._clock, self._sleep = clock, sleep
        self._content = secrets.token_bytes(min(nbytes, MIB)) * max(nbytes // MIB, 1)

    def findings(self) -> Iterator[Finding]:
        """One after another, until one is bad."""
        yield self._answers()
        yield self._written()
        status = self._store.stat(self._name)
        yield self._looked_at(status)
        assert status is not None
        if self._store.copies_wanted > 1 or status.copies is not None:
            copies = status.copies or 0
            what = f"{copies} of {self._store.copies_wanted} copies in the memory of workers"
            yield Finding(what, copies >= self._store.copies_wanted)
        if status.is_forgotten:
            yield Finding("the write type is not honoured: nothing is going to make durable what was written", False)
        yield self._read()
        yield self._durable()

    def _answers(self) -> Finding:
        taken = []
        for _ in range(_TURNS):
            start = self._clock()
            self._store.stat(self._name)
            taken.append(self._clock() - start)
        self._report.round_trip_seconds = sorted(taken)[_TURNS // 2]
        return Finding("it answers", True)

    def _written(self) -> Finding:
        start = self._clock()
        self._store.put(self._name, io.BytesIO(self._content), len(self._content))
        self._report.write_rate = len(self._content) / max(self._clock() - start, 1e-9)
        return Finding(f"it takes {len(self._content) / MIB:g} MiB", True)

    def _looked_at(self, status: ObjectStatus | None) -> Finding:
        if status is None:
            return Finding("what was written is not there", False)
        if not status.is_complete or status.nbytes != len(self._content):
            return Finding(f"what was written is there with {status.nbytes} bytes only", False)
        return Finding("what was written is there, complete", True)

    def _read(self) -> Finding:
        into = io.BytesIO()
        start = self._clock()
        try:
            self._store.get(self._name, into)
        except CorruptObject as error:
            return Finding(str(error), False)
        self._report.read_rate = len(self._content) / max(self._clock() - start, 1e-9)
        is_same = into.getvalue() == self._content
        return Finding(f"what is read is {'' if is_same else 'not '}what was written", is_same)

    def _durable(self) -> Finding:
        start = self._clock()
        is_hastened = False
        while True:
            status = self._store.stat(self._name)
            waited = self._clock() - start
            if status is None:
                return Finding("what was written has vanished", False)
            if status.is_durable:
                self._report.durable_seconds = waited
                return Finding("it becomes durable", True)
            if status.is_lost:
                return Finding("what was written was lost before it was durable", False)
            if waited > self._patience_seconds:
                return Finding(f"what was written is not durable after {waited:.0f} s", False)
            if waited > self._patience_seconds / 2 and not is_hastened:
                is_hastened = True
                self._store.hasten(self._name)
            self._sleep(_POLL_SECONDS)
