"""A monitor process that a trainer starts (`tranlogs.journal.monitor_launch`)."""

from __future__ import annotations

import subprocess
import sys

from tranlogs.journal import JournalPaths
from tranlogs.retention import Monitor
from tranlogs.shipping import LAG_SECONDS

LOG_NAME = "monitor.log"  # in the journal's folder: the monitor's log
_SPAWN = '"$@" >/dev/null & echo $!'  # The shell exits at once, so that the monitor is not a child of the trainer.


def start_monitor(paths: JournalPaths, monitor: Monitor) -> int:
    """Start `tranlogs monitor --set until_closed=true` for one journal, in a new session; return its process id.

    Raises:
        OSError: no process can be started.
    """
    folder = paths.folder.absolute()
    command = [
        sys.executable,
        "-m",
        "tranlogs",
        "monitor",
        str(folder),
        "--set",
        "until_closed=true",
        "--interval",
        monitor.interval,
    ]
    if monitor.budget_bytes is not None:
        command += ["--budget", str(monitor.budget_bytes)]
    if monitor.store is not None:
        command += ["--store", monitor.store, "--set", f"max_lag={LAG_SECONDS:g}s"]
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
    return int(done.stdout)
