"""What a process that dies now would leave behind, without killing it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tranlogs.journal.journal import Journal


def abandoned_copy(journal: Journal, to: Path) -> Path:
    """Copy a run whose training thread stands still. Files that background threads delete meanwhile may be missing."""
    journal.wait_synced()
    return copy_of_written(journal, to)


def copy_of_written(journal: Journal, to: Path) -> Path:
    """The same without the records that a writer thread still has in its queue: it must not get to them meanwhile."""
    journal.wait_checkpoint()
    if journal.log.wal is not None:
        journal.log.wal.group.wait_synced()
    shutil.copytree(journal.paths.folder.parent, to, copy_function=_copy)
    return to


def _copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    try:
        shutil.copyfile(source, target)
    except FileNotFoundError:
        Path(target).unlink(missing_ok=True)
