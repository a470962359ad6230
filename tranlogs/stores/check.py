"""Check that a store is usable: use it as the archiver does.

An object is written, looked up, read back and deleted; before it is deleted, the check waits until it is durable. A problem has
the server's own text; docs/stores.md says what to do about it.
"""

from __future__ import annotations

import io
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..base.config import MIB, STORE_CHECK_SECONDS
from ..base.errors import CorruptObject, TranLogsError
from .store import ObjectStatus, Store

_POLL_SECONDS = 0.05
_ROUND_TRIPS = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about a store.

    Attributes:
        what: the fact, in words.
        is_good: False if the store cannot be used because of it.
    """

    what: str
    is_good: bool


@dataclass(slots=True)
class StoreReport:
    """The findings about a store, and its speed. What was not measured is None.

    Attributes:
        url: address of the store.
        findings: in the order of the check; at most the last one is bad.
        round_trip_seconds: median time of a request for the status of an object.
        write_rate: bytes a second.
        read_rate: bytes a second.
        durable_seconds: time from the end of a write until the object is durable.
    """

    url: str
    findings: list[Finding] = field(default_factory=list)
    round_trip_seconds: float | None = None
    write_rate: float | None = None
    read_rate: float | None = None
    durable_seconds: float | None = None

    @property
    def is_usable(self) -> bool:
        """True if all findings are good."""
        return all(finding.is_good for finding in self.findings)


def check_store(
    store: Store,
    *,
    nbytes: int = 32 * MIB,
    patience_seconds: float = STORE_CHECK_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> StoreReport:
    """Use a store as the archiver does, with one object that is deleted in the end. Faults are findings; nothing is raised.

    Args:
        store: the store.
        nbytes: size of the object.
        patience_seconds: how long to wait for the object to become durable.
        clock: for measurements.
        sleep: for waiting.
    """
    report = StoreReport(store.url)
    name = f"tranlogs-check-{secrets.token_hex(8)}"
    check = _Check(store, name, report, nbytes, patience_seconds, clock, sleep)
    for finding in _until_bad(check.findings()):
        report.findings.append(finding)
    try:
        store.delete(name)
    except TranLogsError as error:
        if report.is_usable:
            report.findings.append(Finding(str(error), False))
    return report


def _until_bad(findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield findings up to the first bad one; an error is a bad finding."""
    try:
        for finding in findings:
            yield finding
            if not finding.is_good:
                return
    except TranLogsError as error:
        yield Finding(str(error), False)


class _Check:
    """The steps of the check. Each step returns or yields findings, and records measurements in the report."""

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
        """Yield the findings, up to the first bad one."""
        yield self._measure_round_trip()
        yield self._write()
        status = self._store.stat(self._name)
        yield self._check_status(status)
        assert status is not None
        if self._store.copies_wanted > 1 or status.copies is not None:
            copies = status.copies or 0
            what = f"{copies} of {self._store.copies_wanted} copies in the memory of workers"
            yield Finding(what, copies >= self._store.copies_wanted)
        if status.is_forgotten:
            yield Finding("the write type is not honoured: the store will not make the object durable", False)
        yield self._read()
        yield self._wait_until_durable()

    def _measure_round_trip(self) -> Finding:
        seconds = []
        for _ in range(_ROUND_TRIPS):
            start = self._clock()
            self._store.stat(self._name)
            seconds.append(self._clock() - start)
        self._report.round_trip_seconds = sorted(seconds)[_ROUND_TRIPS // 2]
        return Finding("the store answers", True)

    def _write(self) -> Finding:
        start = self._clock()
        self._store.put(self._name, io.BytesIO(self._content), len(self._content))
        self._report.write_rate = len(self._content) / max(self._clock() - start, 1e-9)
        return Finding(f"the store accepts {len(self._content) / MIB:g} MiB", True)

    def _check_status(self, status: ObjectStatus | None) -> Finding:
        if status is None:
            return Finding("the object is missing after it was written", False)
        if not status.is_complete or status.nbytes != len(self._content):
            return Finding(f"writing the object was not finished: {status.nbytes} of {len(self._content)} bytes", False)
        return Finding("the object is complete", True)

    def _read(self) -> Finding:
        into = io.BytesIO()
        start = self._clock()
        try:
            self._store.get(self._name, into)
        except CorruptObject as error:
            return Finding(str(error), False)
        self._report.read_rate = len(self._content) / max(self._clock() - start, 1e-9)
        is_same = into.getvalue() == self._content
        return Finding(
            f"the content that is read {'equals' if is_same else 'differs from'} the content that was written", is_same
        )

    def _wait_until_durable(self) -> Finding:
        start = self._clock()
        is_requested = False
        while True:
            status = self._store.stat(self._name)
            waited = self._clock() - start
            if status is None:
                return Finding("the object has vanished", False)
            if status.is_durable:
                self._report.durable_seconds = waited
                return Finding("the object becomes durable", True)
            if status.is_lost:
                return Finding("the object was lost before it was durable", False)
            if waited > self._patience_seconds:
                return Finding(f"the object is not durable after {waited:.0f} s", False)
            if waited > self._patience_seconds / 2 and not is_requested:
                is_requested = True
                self._store.request_durability(self._name)
            self._sleep(_POLL_SECONDS)
