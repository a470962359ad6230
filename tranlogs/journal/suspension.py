"""A suspension of logging, while the disk is full or fails: its reason, its retries, its incident in the catalog, its words."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, replace

from ..base.config import RETRY_SECONDS_MAX, RETRY_SECONDS_MIN
from ..base.errors import CatalogUnavailable, RunLost, UnencodableState, file_size_limit
from ..catalog import Catalog, Incident

_OF_THIS_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EBADF)  # errors that do not come from the disk


@dataclass(slots=True)
class Suspension:
    """A time in which logging is suspended.

    Attributes:
        step: the newest step of the training when it began.
        since: the time of day when it began.
        next_try: when the next attempt to resume is made, in seconds of the monotonic clock.
        delay: the seconds between the last attempt and the next one.
    """

    why: str
    step: int
    since: float
    next_try: float
    delay: float = RETRY_SECONDS_MIN

    @classmethod
    def begin(cls, why: str, step: int, since: float, now: float, ended: Suspension | None) -> Suspension:
        """Return a suspension that begins now.

        If the previous suspension ended only a short time ago, its cause was not removed. The delay then continues to grow.
        """
        suspension = cls(why, step, since, now + RETRY_SECONDS_MIN)
        if ended is not None and now < ended.next_try + RETRY_SECONDS_MAX:
            suspension.delay = ended.delay
            suspension.postpone(now)
        return suspension

    def postpone(self, now: float) -> None:
        """Double the delay, because an attempt to resume failed."""
        self.delay = min(self.delay * 2, RETRY_SECONDS_MAX)
        self.next_try = now + self.delay

    def end(self, now: float) -> None:
        """Record the time at which logging resumed."""
        self.next_try = now


def note_incident(catalog: Catalog, suspension: Suspension) -> None:
    """Record in the catalog that logging is suspended, once for each suspension.

    Raises:
        LogUnavailable: the catalog cannot be written, either.
    """
    with catalog.transaction() as tables:
        known = tables.rows("incident/", Incident)
        if known and known[-1].to_step is None:
            return
        number = _next_number(known)
        tables.put(f"incident/{number:06d}", Incident(number, suspension.why, suspension.step, suspension.since))


def end_incident(catalog: Catalog, step: int, now: float, suspension: Suspension | None = None) -> None:
    """Record in the catalog that logging resumed.

    Args:
        suspension: the suspension that ended. It is recorded now if the catalog could not be written before. None if a dead
            process may have left an incident open.

    Raises:
        LogUnavailable: the disk is full or fails.
    """
    if suspension is None and not any(row.to_step is None for row in catalog.incidents()[-1:]):
        return
    with catalog.transaction() as tables:
        rows = tables.rows("incident/", Incident)
        if rows and rows[-1].to_step is None:
            ended = replace(rows[-1], to_step=step, to_time=now)
        elif suspension is not None:
            ended = Incident(_next_number(rows), suspension.why, suspension.step, suspension.since, step, now)
        else:
            return
        tables.put(f"incident/{ended.number:06d}", ended)


def _next_number(known: list[Incident]) -> int:
    """Return the number of the next incident. A row before the last one may be missing, if the catalog was rebuilt."""
    return known[-1].number + 1 if known else 1


def consequence_of(error: BaseException, committed: int) -> str:
    """Return what a crash would cost while logging is suspended."""
    if isinstance(error, RunLost) and error.loss:
        return f"a crash now would lose {error.loss}"
    return f"a crash now would go back to step {committed}"


def _is_of_this_process(error: BaseException | None) -> bool:
    """Return True if an error, or one of its causes, is of descriptors or memory, and not of the disk."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _OF_THIS_PROCESS):
            return True
        error = error.__cause__
    return False


def outlook_after(error: BaseException) -> str:
    """Return when logging resumes."""
    when = "the disk can be written again"
    if isinstance(error, UnencodableState):
        when = "the state can be stored again"
    elif isinstance(error, CatalogUnavailable) or _is_of_this_process(error):
        when = "the cause is removed"
    elif isinstance(error, RunLost):
        when = error.resumes_when
    elif file_size_limit(error) is not None:
        when = f"the limit is raised (prlimit --fsize --pid {os.getpid()})"
    if not when:
        return "Logging does not resume: stop this process, unless it is to end without a log"
    return f"Logging resumes by itself, from a fresh checkpoint, when {when}"
