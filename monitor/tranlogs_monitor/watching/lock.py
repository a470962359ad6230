"""One monitor a journal."""

from __future__ import annotations

from pathlib import Path

from tranlogs.base.errors import RunInUse, UsageError
from tranlogs.journal.process.writer_lock import OwnerLock


def lock(folder: Path) -> OwnerLock:
    """Take a journal for this monitor.

    Raises:
        UsageError: another monitor has it; the message names it.
    """
    try:
        return OwnerLock(folder, "monitor")
    except RunInUse as error:
        raise UsageError(
            f"{folder}: a monitor runs already (process {error.pid} on {error.host}); --wait takes over when it ends"
        ) from None
