"""A monitor that the trainer starts, as a thread or as a process (`tranlogs.journal.monitor_launch`)."""

from __future__ import annotations

import logging
import subprocess
import sys

from tranlogs.base.threads import start_thread
from tranlogs.journal import JournalPaths
from tranlogs.journal.monitor_launch import EmbeddedMonitor
from tranlogs.retention import Monitor
from tranlogs.retention.pruning_plan import Budget
from tranlogs.shipping import LAG_SECONDS

from .daemon import Daemon
from .settings import DaemonSettings

_log = logging.getLogger("tranlogs")

LOG_NAME = "monitor.log"  # in the journal's folder: the log of a monitor that is a process
_SECONDS_TO_END = 10.0
_SPAWN = '"$@" >/dev/null & echo $!'  # The shell exits at once, so that the monitor is not a child of the trainer.


def start_embedded_monitor(paths: JournalPaths, monitor: Monitor) -> EmbeddedMonitor:
    """Start a monitor for one journal.

    Raises:
        OSError, LogUnavailable: no process or thread can be started.
    """
    return MonitorThread(paths, monitor) if monitor.mode == "thread" else MonitorProcess(paths, monitor)


class MonitorThread:
    """The daemon in a thread of the trainer's process, which ships the run itself.

    An error that ends the daemon is logged once, and training continues.
    """

    def __init__(self, paths: JournalPaths, monitor: Monitor) -> None:
        settings = DaemonSettings(
            Budget(monitor.budget_bytes),
            interval_seconds=monitor.interval_seconds,
        )
        self._folder = paths.folder
        self._daemon = Daemon([paths.folder], settings, find=lambda _: [paths])
        self._thread = start_thread("tranlogs-monitor", self._run)

    def _run(self) -> None:
        try:
            self._daemon.run()
        except Exception as error:
            _log.warning(
                "%s: the monitor has failed (%s: %s); training and logging continue without it",
                self._folder,
                type(error).__name__,
                error,
            )

    def close(self) -> None:
        """Stop the daemon after the current evaluation. An evaluation that takes long ends with the process."""
        self._daemon.stop()
        self._thread.join(_SECONDS_TO_END)


class MonitorProcess:
    """A process that runs `tranlogs monitor --until-closed`, in a new session."""

    def __init__(self, paths: JournalPaths, monitor: Monitor) -> None:
        folder = paths.folder.absolute()
        command = [sys.executable, "-m", "tranlogs", "monitor", str(folder), "--until-closed", "--interval", monitor.interval]
        if monitor.budget_bytes is not None:
            command += ["--budget", str(monitor.budget_bytes)]
        if monitor.store is not None:
            command += ["--store", monitor.store, "--max-lag", f"{LAG_SECONDS:g}s"]
        with open(folder / LOG_NAME, "ab") as log:
            done = subprocess.run(
                ["/bin/sh", "-c", _SPAWN, "sh", *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                check=True,
                pass_fds=(),
            )
        self.pid = int(done.stdout)

    def close(self) -> None:
        """Do nothing: the process detects that the run was closed."""
