"""Shutdown of a journal when its process is to end: it is sealed, synced, and shipped as far as the time allows."""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Callable
from typing import Literal

from ...base.errors import TranLogsError, UsageError, error_text
from ..journal import Journal
from . import signals

_log = logging.getLogger("tranlogs")

OnSignal = Literal["seal"]

GRACE_SECONDS = 20.0  # Kubernetes, Slurm and torchrun all wait for 30 s by default before they kill
GRACE_SECONDS_MAX = 86400.0

Ship = Callable[[int, float], None]


class ShutdownHandler:
    """Saves one journal when its process ends. Make it when the journal is opened, and close it after the journal.

    Args:
        journal: written by this process.
        ship: waits until a step is in the store, for a number of seconds at most.
        on_signal: "seal", or None to leave signals alone.
        grace_seconds: the time from the signal to the end of the process.

    Attributes:
        grace_seconds: the time from the signal to the end of the process.
        handles_signals: False if `on_signal` is None.

    Raises:
        UsageError: a setting is wrong.
    """

    def __init__(self, journal: Journal, ship: Ship, on_signal: OnSignal | None, grace_seconds: float) -> None:
        self.grace_seconds = check_shutdown_settings(on_signal, grace_seconds)
        self.handles_signals = on_signal is not None
        self._journal, self._ship = journal, ship
        signals.watch(self)
        atexit.register(self._at_exit)

    def close(self) -> None:
        """Stop watching, because the journal is closed and nothing is left to save."""
        atexit.unregister(self._at_exit)
        signals.forget(self)

    def _at_exit(self) -> None:
        """Close and ship the journal of a script that an exception ended."""
        self._journal.close()
        self._ship(self._journal.committed, self.grace_seconds)
        self.close()

    def seal(self) -> None:
        """Seal and sync the journal. Another handler decides what the signal means, and training may continue."""
        self._journal.seal(self.grace_seconds)

    def shut_down(self, reason: str, end: float) -> None:
        """Seal, sync and ship the journal, because the process ends at `end` (monotonic seconds) at the latest."""
        journal = self._journal
        try:
            is_sealed = journal.shut_down(end - time.monotonic())
        except (TranLogsError, OSError) as error:
            _log.warning(
                "%s: %s: the log could not be synced (%s); steps up to %d survive the process",
                journal.paths.folder,
                reason,
                error_text(error),
                journal.committed,
            )
            return
        _log.warning(
            "%s: %s: steps up to %d are safe (the log is %s), and the process ends",
            journal.paths.folder,
            reason,
            journal.committed,
            "sealed and synced" if is_sealed else "synced, but not sealed",
        )
        self._ship(journal.committed, end - time.monotonic())


def check_shutdown_settings(on_signal: object, grace_seconds: float) -> float:
    """Return `grace_seconds` as a float.

    Raises:
        UsageError: one of the two settings is wrong.
    """
    if on_signal not in ("seal", None):
        raise UsageError(f'on_signal must be "seal" (seal and sync the log, then end) or None, got {on_signal!r}')
    is_number = isinstance(grace_seconds, (int, float)) and not isinstance(grace_seconds, bool)
    if not is_number or not 0 < grace_seconds <= GRACE_SECONDS_MAX:
        raise UsageError(
            "grace_seconds must be the number of seconds from the signal to the end of the process, such as 20, and at most "
            f"{GRACE_SECONDS_MAX:g}; got {grace_seconds!r}"
        )
    return float(grace_seconds)
