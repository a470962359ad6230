"""What becomes of a journal when its process is told to end: sealed, synced, and shipped as far as the time allows."""

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
    """One journal's part in `signals`. Made when it is opened, closed after it.

    Args:
        journal: that this process writes.
        ship: waits until a step is in the store, so many seconds at most.
        on_signal: "seal", or None to let signals do what they would do without us.
        grace_seconds: seconds from the signal to the end of the process.

    Raises:
        UsageError: a setting is wrong.
    """

    def __init__(self, journal: Journal, ship: Ship, on_signal: OnSignal | None, grace_seconds: float) -> None:
        self.grace_seconds, self.heeds_signals = check_shutdown_settings(on_signal, grace_seconds), on_signal is not None
        self._journal, self._ship = journal, ship
        signals.watch(self)
        atexit.register(self._at_exit)

    def close(self) -> None:
        """The journal is closed: nothing is left to be saved."""
        atexit.unregister(self._at_exit)
        signals.forget(self)

    def _at_exit(self) -> None:
        """An exception ended the script, and nobody has closed the journal."""
        self._journal.close()
        self._ship(self._journal.committed, self.grace_seconds)
        self.close()

    def secure(self) -> None:
        """Somebody else decides what the signal means, and training may go on."""
        self._journal.secure(self.grace_seconds)

    def part(self, why: str, end: float) -> None:
        """The process ends at `end` (monotonic seconds) at the latest."""
        journal = self._journal
        try:
            is_sealed = journal.part(end - time.monotonic())
        except (TranLogsError, OSError) as error:
            _log.warning("%s: %s: the log could not be synced (%s); steps up to %d survive the process", journal.paths.folder,
                         why, error_text(error), journal.committed)  # fmt: skip
            return
        _log.warning("%s: %s: steps up to %d are safe (the log is %s), and the process ends", journal.paths.folder, why,
                     journal.committed, "sealed and synced" if is_sealed else "synced, and not sealed")  # fmt: skip
        self._ship(journal.committed, end - time.monotonic())


def check_shutdown_settings(on_signal: object, grace_seconds: float) -> float:
    """The seconds of grace_seconds, if both settings are right.

    Raises:
        UsageError: one of them is wrong.
    """
    if on_signal not in ("seal", None):
        raise UsageError(f'on_signal={on_signal!r}: use "seal" (seal and sync the log, then end), or None')
    is_number = isinstance(grace_seconds, (int, float)) and not isinstance(grace_seconds, bool)
    if not is_number or not 0 < grace_seconds <= GRACE_SECONDS_MAX:
        raise UsageError(
            f"grace_seconds={grace_seconds!r}: give the seconds from the signal to the end of the process, like 20"
        )
    return float(grace_seconds)
