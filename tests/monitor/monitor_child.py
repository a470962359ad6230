"""A server that forks monitors, each of which runs until it is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.forking import serve
from tranlogs.base import failpoints
from tranlogs.cli.reading.find_journals import find_journals
from tranlogs.retention.prune import Budget
from tranlogs.shipping import ShippingSettings, StoreSettings, archiver
from tranlogs_monitor.daemon import Daemon, find_watched_journals
from tranlogs_monitor.settings import DaemonSettings


def watch(job: dict[str, Any]) -> None:
    failpoints._rules = failpoints._parse(job["failpoints"])
    store = None
    if job.get("store"):
        archiver._TURN_SECONDS = archiver.RETRY_SECONDS_MIN = archiver.RETRY_SECONDS_MAX = 0.01
        store = StoreSettings(job["store"], ShippingSettings(0.02))
    settings = DaemonSettings(
        Budget(job["budget"], **job.get("limits", {})),
        interval_seconds=job["interval"],
        waits=True,
        store=store,
    )
    Daemon([Path(job["root"])], settings, find=lambda root: find_watched_journals(root, find_journals)).run()


if __name__ == "__main__":
    serve(watch)
