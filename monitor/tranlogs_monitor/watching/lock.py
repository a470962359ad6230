"""The lock that lets only one monitor watch a journal."""

from __future__ import annotations

import errno
from pathlib import Path

from tranlogs.base.errors import RunInUse, UsageError
from tranlogs.journal.ownership.writer_lock import OwnerLock


def lock_journal(folder: Path) -> OwnerLock:
    """Lock a journal for this monitor.

    Raises:
        UsageError: another monitor watches it, which the message names, or this process may not write in the folder.
    """
    try:
        return OwnerLock(folder, "monitor")
    except RunInUse as error:
        raise UsageError(
            f"{folder}: process {error.pid} on {error.host} monitors it; --wait takes over when that process ends"
        ) from None
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise UsageError(
            f"{folder}: this process may not write in the folder ({error.strerror}), and a monitor locks and prunes the run. "
            "Run it as the user that owns the folder, or give this user permission to write there"
        ) from None
