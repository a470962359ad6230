"""Monitors in processes of their own, which are killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.clock import FakeClock
from tests.support.forking import ForkServer
from tranlogs.cli.reading.find_journals import find_journals
from tranlogs.retention.prune import Budget
from tranlogs_monitor.daemon import Daemon, find_watched_journals
from tranlogs_monitor.settings import DaemonSettings

CHILD = Path(__file__).with_name("monitor_child.py")


def watching_daemon(root: Path, clock: FakeClock | None = None, **budget: Any) -> Daemon:
    """Return a daemon of this process for the runs in a folder."""
    settings = DaemonSettings(Budget(**budget))
    return Daemon([root], settings, find=lambda root: find_watched_journals(root, find_journals), clock=clock)


class Monitors:
    """Forks monitors, one at a time, and kills them."""

    def __init__(self, **environment: str) -> None:
        self._server = ForkServer(CHILD, **environment)
        self._pid = 0

    def start(
        self,
        root: Path,
        budget: int,
        *,
        failpoints: str = "",
        interval: float = 0.005,
        store: Path | None = None,
        **limits: Any,
    ) -> None:
        """Watch from here on, ship to `store` if there is one."""
        self._pid = self._server.start(
            {
                "root": str(root),
                "budget": budget,
                "failpoints": failpoints,
                "interval": interval,
                "limits": limits,
                "store": str(store) if store is not None else "",
            }
        )

    def kill(self) -> int:
        """SIGKILL, if it is still there; its exit status."""
        pid, self._pid = self._pid, 0
        return self._server.kill(pid)

    def close(self) -> None:
        """Kill the one that is there, and end the server."""
        if self._pid:
            self.kill()
        self._server.close()
