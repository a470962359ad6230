"""Logging is suspended while the disk is full or fails: why, since when, when to try again, and what the catalog keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...base.config import RETRY_SECONDS_MAX, RETRY_SECONDS_MIN
from ...catalog import Catalog, Incident


@dataclass(slots=True)
class Suspension:
    """`since` is a time of day; `next_try` is in the monotonic clock's seconds."""

    why: str
    step: int
    since: float
    next_try: float
    delay: float = RETRY_SECONDS_MIN

    @classmethod
    def begin(cls, why: str, step: int, since: float, now: float, ended: Suspension | None) -> Suspension:
        """Logging stops now. If it had gone on only for a moment, this is the trouble of before, and waits longer."""
        begun = cls(why, step, since, now + RETRY_SECONDS_MIN)
        if ended is not None and now < ended.next_try + RETRY_SECONDS_MAX:
            begun.delay = ended.delay
            begun.postpone(now)
        return begun

    def postpone(self, now: float) -> None:
        """A try to resume failed: wait twice as long for the next one."""
        self.delay = min(self.delay * 2, RETRY_SECONDS_MAX)
        self.next_try = now + self.delay

    def end(self, now: float) -> None:
        """Logging goes on."""
        self.next_try = now


def note_incident(catalog: Catalog, suspension: Suspension) -> None:
    """Record that logging is suspended, once.

    Raises:
        LogUnavailable: the disk that failed has the catalog, too.
    """
    with catalog.transaction() as tables:
        known = tables.rows("incident/", Incident)
        if known and known[-1].to_step is None:
            return
        number = len(known) + 1
        tables.put(f"incident/{number:06d}", Incident(number, suspension.why, suspension.step, suspension.since))


def end_incident(catalog: Catalog, step: int, now: float, suspension: Suspension | None = None) -> None:
    """Record that logging goes on, from the fresh checkpoint of `step`.

    Args:
        catalog: the journal's.
        step: where it goes on.
        now: the time of day.
        suspension: what ends, in case that it could not be recorded before; None if a dead process may have left one.

    Raises:
        LogUnavailable: the disk is full or fails.
    """
    rows = catalog.incidents()
    if rows and rows[-1].to_step is None:
        ended = replace(rows[-1], to_step=step, to_time=now)
    elif suspension is not None:
        ended = Incident(len(rows) + 1, suspension.why, suspension.step, suspension.since, step, now)
    else:
        return
    with catalog.transaction() as tables:
        tables.put(f"incident/{ended.number:06d}", ended)
