"""The framework that a run names, reached through entry points: the command line imports none itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from ..base.errors import CorruptCatalog, UsageError
from ..catalog import Catalog
from ..checkpoints import Snapshot
from ..journal import JournalPaths
from ..log.record import Position
from ..rebuild import read_files
from ..recovery import RecoveryReport
from ..recovery.recover import Progress


class OfflineRun(Protocol):
    """What an entry point of the group `tranlogs.frameworks` makes: a journal's state without its training script."""

    def __init__(self, folder: Path, *, optimizers: Sequence[str] = ()) -> None: ...

    @staticmethod
    def check_target(path: Path, form: str | None = None) -> None:
        """Raise UsageError if `export` could not write this, in the format named, or else that its name says."""
        ...

    def replay(
        self,
        *,
        step: int | None = None,
        sequence: int | None = None,
        checkpoint: str | None = None,
        progress: Progress | None = None,
    ) -> RecoveryReport:
        """Bring the state to a step, or as far as the entry `sequence`."""
        ...

    def snapshot(self, position: Position) -> Snapshot:
        """The state as the run's own checkpoint at `position` would hold it, byte for byte; UsageError if in doubt."""
        ...

    def export(self, path: Path, form: str | None = None, progress: Progress | None = None) -> list[str]:
        """Write it to a file or folder; returns what that does not hold."""
        ...


def framework_of(paths: JournalPaths) -> type[OfflineRun]:
    """What replays this journal.

    Raises:
        UsageError: it is not installed, or the run does not say which framework wrote it.
    """
    name = _recorded_name(paths)
    if not name:
        raise UsageError(f"{paths.folder}: the run does not say which framework wrote it")
    found: type[OfflineRun] = _load("tranlogs.frameworks", name, f"{paths.folder} was written with {name}")
    return found


def offline_of(paths: JournalPaths, optimizers: Sequence[str] = ()) -> OfflineRun:
    """A journal to be replayed; classes of the user's own are looked for in the working folder, too."""
    offline_run = framework_of(paths)
    if optimizers and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return offline_run(paths.folder, optimizers=optimizers)


def importer_of(name: str) -> Callable[[Path, Path | None, dict[str, Any], Progress | None], dict[str, Any]]:
    """What reads a framework's checkpoints, says what is in them, and puts it into the folder of a run that is to begin."""
    importer: Callable[..., dict[str, Any]] = _load(
        "tranlogs.frameworks", name, f"such files are read with {name}"
    ).import_source
    return importer


def demo_of(name: str) -> Callable[..., int]:
    """The demo of a framework."""
    found: Callable[..., int] = _load("tranlogs.demos", name, f"the demo needs {name}")
    return found


def daemon_of(name: str) -> tuple[Callable[..., int], Callable[..., Any], Callable[..., Any]]:
    """A daemon's function, what makes its settings, and what starts it beside a trainer."""
    watch, settings, start_embedded_monitor = _load("tranlogs.daemons", name, f"this needs the {name}")
    return watch, settings, start_embedded_monitor


def _recorded_name(paths: JournalPaths) -> str:
    try:
        catalog = Catalog.open(paths.folder)
        try:
            row = catalog.run()
        finally:
            catalog.close()
    except CorruptCatalog:
        rows = read_files(paths.folder).runs
        row = rows[0] if rows else None
    return row.framework if row is not None else ""


def _load(group: str, name: str, why: str) -> Any:
    hint = f"{why}, which is not installed here: pip install 'tranlogs[{name}]'"
    for entry in entry_points(group=group, name=name):
        try:
            return entry.load()
        except ImportError as error:
            raise UsageError(f"{hint} ({error})") from None
    raise UsageError(hint)
