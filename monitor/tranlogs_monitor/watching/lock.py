"""The lock that lets only one monitor watch a journal."""

from __future__ import annotations

from pathlib import Path

from tranlogs.base.errors import RunInUse, UsageError
from tranlogs.journal.ownership.writer_lock import OwnerLock


def lock_journal(folder: Path) -> OwnerLock:
    """Lock a journal for this monitor.

    Raises:
        UsageError: another monitor watches it; the message names that process.
    """
    try:
        return OwnerLock(folder, "monitor")
    except RunInUse as error:
        raise UsageError(
            f"{folder}: process {error.pid} on {error.host} monitors it; --wait takes over when that process ends"
        ) from None
