"""A server that forks monitors, so that many of them can be killed in a few seconds.

A job is one line of JSON on stdin; `pid N` is answered, the monitor runs until it is killed, and an empty line reaps it:
`exit STATUS`.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from tranlogs.base import failpoints
from tranlogs.cli.reading.runs import find_journals
from tranlogs.retention.budget import Budget
from tranlogs.retention.compaction import Compaction
from tranlogs.shipping import ShippingSettings
from tranlogs.shipping.sending import archiver, failures
from tranlogs_monitor.daemon import Daemon, find_watched_journals
from tranlogs_monitor.settings import DaemonSettings, StoreSettings


def watch(job: dict[str, Any]) -> None:
    failpoints._rules = failpoints._parse(job["failpoints"])
    store = None
    if job.get("store"):
        archiver._TURN_SECONDS = failures.RETRY_SECONDS_MIN = failures.RETRY_SECONDS_MAX = 0.01
        store = StoreSettings(job["store"], ShippingSettings(0.02))
    settings = DaemonSettings(
        Budget(job["budget"], **job.get("limits", {})),
        interval_seconds=job["interval"],
        waits=True,
        store=store,
        compaction=Compaction(1) if job["compacts"] else None,
    )
    Daemon([Path(job["root"])], settings, find=lambda root: find_watched_journals(root, find_journals)).run()


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                watch(json.loads(line))
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        os.write(1, f"pid {child}\n".encode())
        sys.stdin.readline()
        os.write(1, f"exit {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n".encode())


if __name__ == "__main__":
    main()
