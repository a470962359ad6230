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
from itertools import chain

from ..base.config import MIB, STORE_CHECK_SECONDS
from ..base.errors import CorruptObject, TranLogsError
from .store import Store

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
    content = secrets.token_bytes(min(nbytes, MIB)) * max(nbytes // MIB, 1)
    try:
        for finding in chain(
            _check_content(store, name, content, report, clock),
            _check_durability(store, name, report, patience_seconds, clock, sleep),
        ):
            report.findings.append(finding)
            if not finding.is_good:
                break
    except TranLogsError as error:
        report.findings.append(Finding(str(error), False))
    try:
        store.delete(name)
    except TranLogsError as error:
        if report.is_usable:
            report.findings.append(Finding(str(error), False))
    return report


def _check_content(
    store: Store, name: str, content: bytes, report: StoreReport, clock: Callable[[], float]
) -> Iterator[Finding]:
    """Write an object, look it up, and read it back. The caller stops at the first bad finding."""
    seconds = []
    for _ in range(_ROUND_TRIPS):
        start = clock()
        store.stat(name)
        seconds.append(clock() - start)
    report.round_trip_seconds = sorted(seconds)[_ROUND_TRIPS // 2]
    yield Finding("the store answers", True)

    start = clock()
    store.put(name, io.BytesIO(content), len(content))
    report.write_rate = len(content) / max(clock() - start, 1e-9)
    yield Finding(f"the store accepts {len(content) / MIB:g} MiB", True)

    status = store.stat(name)
    if status is None:
        yield Finding("the object is missing after it was written", False)
        return
    is_complete = status.is_complete and status.nbytes == len(content)
    unfinished = f"writing the object was not finished: {status.nbytes} of {len(content)} bytes"
    yield Finding("the object is complete" if is_complete else unfinished, is_complete)
    if store.copies_wanted > 1 or status.copies is not None:
        copies = status.copies or 0
        what = f"{copies} of {store.copies_wanted} copies in the memory of workers"
        yield Finding(what, copies >= store.copies_wanted)
    if status.is_forgotten:
        yield Finding("the write type is not honoured: the store will not make the object durable", False)

    into = io.BytesIO()
    start = clock()
    try:
        store.get(name, into)
    except CorruptObject as error:
        yield Finding(str(error), False)
    report.read_rate = len(content) / max(clock() - start, 1e-9)
    is_same = into.getvalue() == content
    yield Finding(f"the content that is read {'equals' if is_same else 'differs from'} the content that was written", is_same)


def _check_durability(
    store: Store,
    name: str,
    report: StoreReport,
    patience_seconds: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Iterator[Finding]:
    """Wait until the object is durable; ask for it again once."""
    start, is_requested = clock(), False
    while True:
        status, waited = store.stat(name), clock() - start
        if status is None:
            yield Finding("the object has vanished", False)
        elif status.is_durable:
            report.durable_seconds = waited
            yield Finding("the object becomes durable", True)
            return
        elif status.is_lost:
            yield Finding("the object was lost before it was durable", False)
        elif waited > patience_seconds:
            yield Finding(f"the object is not durable after {waited:.0f} s", False)
        elif waited > patience_seconds / 2 and not is_requested:
            is_requested = True
            store.request_durability(name)
        sleep(_POLL_SECONDS)
