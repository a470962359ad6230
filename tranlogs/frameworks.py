"""The framework of a run, and other parts that are installed separately: loaded through entry points, so that the command line
imports none of them itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from .base.errors import UsageError
from .journal import JournalPaths
from .recovery.group.journals import read_run_row
from .recovery.recover import Progress
from .recovery.report import RecoveryReport


class OfflineRun(Protocol):
    """A journal's state without its training script; made by an entry point of the group `tranlogs.frameworks`."""

    def __init__(self, folder: Path, *, optimizers: Sequence[str] = ()) -> None: ...

    @staticmethod
    def check_target(path: Path, form: str | None = None) -> None:
        """Check that `export` can write this file or folder, in the given format, or else in the format of its name.

        Raises:
            UsageError: it cannot.
        """
        ...

    def replay(
        self,
        *,
        step: int | None = None,
        checkpoint: str | None = None,
        progress: Progress | None = None,
    ) -> RecoveryReport:
        """Bring the state to a step; the newest if none is given."""
        ...

    def export(self, path: Path, form: str | None = None, progress: Progress | None = None) -> list[str]:
        """Write the state to a file or folder; return notes on what the format leaves out."""
        ...


class DaemonCommand(Protocol):
    """Functions of a daemon; made by an entry point of the group `tranlogs.daemons`."""

    @property
    def watch(self) -> Callable[..., int]:
        """Run the daemon; return the exit code."""
        ...

    @property
    def settings(self) -> Callable[..., Any]:
        """Make the settings of the daemon."""
        ...


def load_framework(paths: JournalPaths) -> type[OfflineRun]:
    """Load the framework that wrote a journal.

    Raises:
        UsageError: it is not installed, or the run does not name its framework.
    """
    row = read_run_row(paths.folder)
    if row is None or not row.framework:
        raise UsageError(f"{paths.folder}: the run does not name the framework that wrote it")
    found: type[OfflineRun] = _load("tranlogs.frameworks", row.framework, f"{paths.folder} was written with {row.framework}")
    return found


def open_offline_run(paths: JournalPaths, optimizers: Sequence[str] = ()) -> OfflineRun:
    """Open a journal for replay. The user's own optimizer classes are imported from the working folder, too."""
    offline_run = load_framework(paths)
    if optimizers and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return offline_run(paths.folder, optimizers=optimizers)


def load_demo(name: str) -> Callable[..., int]:
    """Load the demo of a framework."""
    found: Callable[..., int] = _load("tranlogs.demos", name, f"the demo requires {name}")
    return found


def load_daemon(name: str) -> DaemonCommand:
    """Load a daemon."""
    found: DaemonCommand = _load("tranlogs.daemons", name, f"this command requires the {name}")
    return found


def _load(group: str, name: str, why: str) -> Any:
    hint = f"{why}, which is not installed here: pip install 'tranlogs[{name}]'"
    for entry in entry_points(group=group, name=name):
        try:
            return entry.load()
        except ImportError as error:
            raise UsageError(f"{hint} ({error})") from None
    raise UsageError(hint)
