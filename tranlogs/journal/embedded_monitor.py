"""A monitor that comes with the trainer (`LoggedOptimizer(monitor=...)`): in a thread of its process, or a process beside it.

The monitor itself is another package, reached through the entry points `tranlogs.daemons`; that it is installed is asked when
the settings are given. Whatever becomes of it, training and logging go on.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any, Protocol

from ..base.errors import UsageError
from ..retention import Monitor
from .opening import JournalPaths
from .ownership.writer_lock import read_owner

_log = logging.getLogger("tranlogs")


class EmbeddedMonitor(Protocol):
    """A monitor that runs."""

    def close(self) -> None:
        """The trainer ends; to be called before it lets go of its journal."""
        ...


def parse_monitor(
    monitor: str | Monitor | None, budget: str | int | None = None, store: str | None = None, *, among: int = 1
) -> Monitor | None:
    """What users write: "thread" or "process", a budget and a store, or a `Monitor`.

    `among`: how many processes on this machine share the budget, which is one for the run. (A `Monitor` has one for its rank.)

    Raises:
        UsageError: it is none of these, or the monitor is not installed.
    """
    if monitor is None:
        if budget is not None:
            raise UsageError(f'budget={budget!r} is kept by a monitor: give monitor="thread" or monitor="process", too')
        return None
    if isinstance(monitor, Monitor):
        if budget is not None:
            raise UsageError("the budget is given twice: write monitor=Monitor(..., budget=...)")
        made = monitor if store is None else replace(monitor, store=store)
    else:
        made = Monitor(monitor, budget, store=store)  # type: ignore[arg-type]  # checked there
        if made.budget_bytes is not None and among > 1:
            made = replace(made, budget=max(made.budget_bytes // among, 1))
    _starter()
    return made


def shipping_store(monitor: Monitor | None, store: str | None) -> tuple[str | None, bool]:
    """The store of a run, and whether the trainer's own process ships to it: a monitor in a process of its own does that."""
    url = store if store is not None or monitor is None else monitor.store
    return url, monitor is None or monitor.mode == "thread"


def start_embedded_monitor(monitor: Monitor | None, paths: JournalPaths) -> EmbeddedMonitor:
    """Start it for a journal that this process writes. That it cannot be started is a warning."""
    if monitor is None:
        return _NoMonitor()
    other = read_owner(paths.folder, "monitor")
    if other is not None and other.is_alive:
        _log.warning(
            "%s: a monitor watches it already (process %d on %s), which goes on alone", paths.folder, other.pid, other.host
        )
        return _NoMonitor()
    try:
        return _OwnProcessOnly(_starter()(paths, monitor))
    except Exception as error:
        _log.warning(
            "%s: its monitor could not be started (%s: %s); training and logging go on without one",
            paths.folder,
            type(error).__name__,
            error,
        )
        return _NoMonitor()


def _starter() -> Any:
    why = "monitor=... needs the monitor, which is not installed here: pip install 'tranlogs[monitor]'"
    for entry in entry_points(group="tranlogs.daemons", name="monitor"):
        try:
            return entry.load().start_embedded_monitor
        except (ImportError, AttributeError) as error:
            raise UsageError(f"{why} ({error})") from None
    raise UsageError(why)


class _NoMonitor:
    def close(self) -> None:
        """Nothing to do."""


class _OwnProcessOnly:
    """Closed in the process that started it only: a forked child (a DataLoader's worker) has no part in it."""

    def __init__(self, inner: EmbeddedMonitor) -> None:
        self._inner, self._pid = inner, os.getpid()

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        try:
            self._inner.close()
        except Exception as error:
            _log.warning("the monitor did not end in order (%s: %s)", type(error).__name__, error)
