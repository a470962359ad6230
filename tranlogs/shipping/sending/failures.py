"""Failures of shipping: when to try again, and which items are left out meanwhile. The archiver's lock guards both classes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from ...base.config import RETRY_SECONDS_MAX, RETRY_SECONDS_MIN
from ...base.errors import StoreRefused, TranLogsError, error_text

_DOUBLINGS_MAX = 10
_EXCLUDED_SECONDS = 600.0  # an item that could not be opened is tried again after this time

Activity = Literal["turn", "send"]  # of the deciding thread, or of a sending thread


class RetryState:
    """The last failure of a journal's shipping, and the time of the next attempt. Pauses double with each failure.

    Attributes:
        problem: why shipping does not proceed; "" if it does.
        is_refused: True if trying again would not help.
        resume_at: time of the next attempt, in seconds of the monotonic clock.
    """

    def __init__(self) -> None:
        self.problem, self.is_refused, self.resume_at = "", False, 0.0
        self._failing: Activity | None = None
        self._failures = 0

    def note_success(self, activity: Activity, *, is_idle: bool) -> bool:
        """Record a success. Return True if it ends the failure of this activity or, with nothing left to send, of any other."""
        if self._failing is None or (self._failing != activity and not is_idle):
            return False
        self.problem, self.is_refused, self._failing, self._failures = "", False, None, 0
        return True

    def note_failure(self, activity: Activity, error: BaseException, now: float) -> bool:
        """Record a failure at the time `now`. Return True if it is not a repetition of the last one."""
        is_refused = isinstance(error, StoreRefused)
        is_known = isinstance(error, (TranLogsError, OSError, MemoryError))
        problem = error_text(error) if is_known else f"error in TranLogs ({type(error).__name__}: {error})"
        is_new = self._failing != activity or self._failures == 0 or (is_refused and self.problem != problem)
        self._failing, self.problem, self.is_refused = activity, problem, is_refused
        self._failures += 1
        doublings = min(self._failures - 1, _DOUBLINGS_MAX)
        pause = min(RETRY_SECONDS_MIN * 2**doublings, RETRY_SECONDS_MAX) * random.uniform(0.5, 1.0)
        self.resume_at = now + (RETRY_SECONDS_MAX if is_refused else pause)
        return is_new


class Exclusions:
    """Items that could not be opened. Each is left out for some time, and reported once."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._unreported: list[tuple[str, str]] = []

    def add(self, name: str, error: BaseException, now: float) -> None:
        """Leave an item out from now on."""
        self._until[name] = now + _EXCLUDED_SECONDS
        self._unreported.append((name, error_text(error)))

    def list_current(self, now: float) -> Sequence[str]:
        """Return the names of the items that are left out at the time `now`."""
        self._until = {name: until for name, until in self._until.items() if until > now}
        return list(self._until)

    def take_unreported(self) -> Sequence[tuple[str, str]]:
        """Return the names of the items that were added since the last call, each with the reason."""
        unreported, self._unreported = self._unreported, []
        return unreported
