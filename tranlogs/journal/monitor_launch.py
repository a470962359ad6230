"""The monitor that a trainer starts (`LoggedOptimizer(monitor="process")`).

The monitor is another package, which is found through the entry points `tranlogs.daemons`. Whether it is installed is checked
when the settings are read. Training and logging continue if the monitor fails.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any

from ..base.errors import UsageError
from ..retention import Monitor
from .owner_lock import read_owner
from .paths import JournalPaths

_log = logging.getLogger("tranlogs")


def parse_monitor(
    monitor: str | Monitor | None, budget: str | int | None = None, store: str | None = None, *, budget_sharers: int = 1
) -> Monitor | None:
    """Return the settings of the monitor; None if there is to be none.

    Args:
        budget: of the run, if `monitor` is a string. (The budget of a `Monitor` is that of its rank.)
        budget_sharers: number of processes on this machine that share the budget of the run.

    Raises:
        UsageError: a setting is wrong, or the monitor is not installed.
    """
    if monitor is None:
        if budget is not None:
            raise UsageError(f'budget={budget!r} needs a monitor: set monitor="process", too')
        return None
    if isinstance(monitor, Monitor):
        if budget is not None:
            raise UsageError("the budget is given twice: write monitor=Monitor(..., budget=...)")
        settings = monitor if store is None else replace(monitor, store=store)
    else:
        if monitor != "process":
            raise UsageError(f'monitor must be "process" or a Monitor(...), got {monitor!r}')
        settings = Monitor(budget, store)
        if settings.budget_bytes is not None and budget_sharers > 1:
            settings = replace(settings, budget=max(settings.budget_bytes // budget_sharers, 1))
    _load_starter()
    return settings


def shipping_store(monitor: Monitor | None, store: str | None) -> tuple[str | None, bool]:
    """Return the URL of the store of a run, and whether the trainer's process ships to it.

    A monitor ships to the store itself.
    """
    url = store if store is not None or monitor is None else monitor.store
    return url, monitor is None


def start_monitor(monitor: Monitor | None, paths: JournalPaths) -> None:
    """Start the monitor of a journal that this process writes. Log a warning if it cannot be started."""
    if monitor is None:
        return
    other = read_owner(paths.folder, "monitor")
    if other is not None and other.is_alive:
        _log.warning(
            "%s: process %d on %s monitors this journal already; no other monitor is started",
            paths.folder,
            other.pid,
            other.host,
        )
        return
    try:
        _load_starter()(paths, monitor)
    except Exception as error:
        _log.warning(
            "%s: the monitor could not be started (%s: %s); training and logging continue without a monitor",
            paths.folder,
            type(error).__name__,
            error,
        )


def _load_starter() -> Any:
    """Return the function of the monitor's package that starts a monitor.

    Raises:
        UsageError: the package is not installed.
    """
    why = "monitor=... needs the monitor, which is not installed here: pip install 'tranlogs[monitor]'"
    for entry in entry_points(group="tranlogs.daemons", name="monitor"):
        try:
            return entry.load().start_monitor
        except (ImportError, AttributeError) as error:
            raise UsageError(f"{why} ({error})") from None
    raise UsageError(why)
