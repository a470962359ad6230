"""Check that a store is usable: use it as the archiver does.

An object is written, looked up, read back and deleted; before it is deleted, the check waits until it is durable. A problem has
the server's own text; docs/stores.md has the remedies.
"""

from __future__ import annotations

import io
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from ..base.config import MIB, STORE_CHECK_SECONDS
from ..base.errors import TranLogsError
from .store import Content, Store

T = TypeVar("T")

_POLL_SECONDS = 0.05


@dataclass(slots=True)
class StoreReport:
    """What using a store has shown.

    Attributes:
        url: address of the store.
        problem: why the store cannot be used; None if it can.
        nbytes: size of the object that was written and read.
        seconds: how long each step took that raised no error: "put", "stat", "get", "durable" (from when the object was read
            back until it was durable) and "delete".
    """

    url: str
    problem: str | None
    nbytes: int
    seconds: dict[str, float] = field(default_factory=dict)


def check_store(
    store: Store,
    *,
    nbytes: int = 32 * MIB,
    patience_seconds: float = STORE_CHECK_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> StoreReport:
    """Use a store as the archiver does, with one object that is deleted in the end. The first fault is the report's problem.

    `patience_seconds` is how long to wait for the object to become durable.
    """
    name = f"tranlogs-check-{secrets.token_hex(8)}"
    content = secrets.token_bytes(min(nbytes, MIB)) * max(nbytes // MIB, 1)
    report = StoreReport(store.url, None, len(content))

    def measure(step: str, work: Callable[[], T]) -> T:
        start = clock()
        result = work()
        report.seconds[step] = clock() - start
        return result

    def find_problem() -> str | None:
        measure("put", lambda: store.put(name, Content.of(content)))
        status = measure("stat", lambda: store.stat(name))
        if status is None:
            return "the object is missing after it was written"
        if not status.is_complete or status.nbytes != len(content):
            return f"writing the object was not finished: {status.nbytes} of {len(content)} bytes"
        if (store.copies_wanted > 1 or status.copies is not None) and (status.copies or 0) < store.copies_wanted:
            return f"{status.copies or 0} of {store.copies_wanted} copies in the memory of workers"
        if status.is_forgotten:
            return "the write type is not honoured: the store will not make the object durable"
        into = io.BytesIO()
        measure("get", lambda: store.get(name, into))
        if into.getvalue() != content:
            return "the content that is read differs from the content that was written"
        return measure("durable", wait_until_durable)

    def wait_until_durable() -> str | None:
        start, is_requested = clock(), False
        while True:
            status, waited = store.stat(name), clock() - start
            if status is None:
                return "the object has vanished"
            if status.is_durable:
                return None
            if status.is_lost:
                return "the object was lost before it was durable"
            if waited > patience_seconds:
                return f"the object is not durable after {waited:.0f} s"
            if waited > patience_seconds / 2 and not is_requested:
                is_requested = True
                store.request_durability(name)
            sleep(_POLL_SECONDS)

    try:
        report.problem = find_problem()
    except TranLogsError as error:
        report.problem = str(error)
    try:
        measure("delete", lambda: store.delete(name))
    except TranLogsError as error:
        report.problem = report.problem or str(error)
    return report
