"""Monitors in this process and in processes of their own, which are killed; and a run that they watch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.support.clock import FakeClock
from tests.support.forking import ForkServer
from tests.support.toy import ToyTrainer, open_toy
from tests.support.toy_steps import NEVER, SIZES
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.cli.reading.find_journals import find_journals
from tranlogs.journal import JournalPaths, read_owner
from tranlogs.retention import KeepAll
from tranlogs.retention.prune import Budget
from tranlogs.retention.value_decay import read_evaluations
from tranlogs_monitor.daemon import Daemon, find_watched_journals
from tranlogs_monitor.settings import DaemonSettings
from tranlogs_monitor.watching.watch import Evaluation, JournalWatch

CHILD = Path(__file__).with_name("monitor_child.py")


def trained_in_segments(run: Path) -> ToyTrainer:
    """30 steps, a segment every 5, checkpoints at 0, 10 and 20; step 31 is in the open segment, and nothing goes on behind."""
    config = JournalConfig(writer="direct", durability="process", segment_bytes=MIB)
    trainer = open_toy(run, sizes=SIZES, config=config, policy=NEVER, retention=KeepAll())
    trainer.recover()
    journal = trainer.journal
    for until in range(5, 31, 5):
        trainer.train(until)
        assert journal.log.wal is not None
        journal.log.wal.roll()
        if until in (10, 20):
            journal.checkpoint(trainer.state.snapshot(), wait=True)
    trainer.train(31)
    assert journal.wait_synced()
    end = time.monotonic() + 60
    while [row.state for row in journal.catalog.segments()] != ["sealed"] * 6 + [
        "open",
        "ready",
    ] or journal.catalog.watermarks().committed < 31:
        time.sleep(0.005)  # the thread behind writes watermarks down when nothing has woken it for a while
        assert time.monotonic() < end, "the segments were not sealed"
    return trainer


def watching(trainer: ToyTrainer | Path, clock: FakeClock | None = None, **settings: Any) -> JournalWatch:
    """A watch of one journal."""
    folder = trainer if isinstance(trainer, Path) else trainer.journal.paths.folder
    return JournalWatch(JournalPaths(folder), DaemonSettings(**settings), clock or FakeClock(1e9))


def seen_at(trainer: ToyTrainer | Path, **settings: Any) -> Evaluation:
    """One evaluation."""
    watch = watching(trainer, **settings)
    try:
        return watch.evaluate()
    finally:
        watch.close()


def watching_daemon(root: Path, clock: FakeClock | None = None, *, waits: bool = False, **budget: Any) -> Daemon:
    """Return a daemon of this process for the runs in a folder."""
    settings = DaemonSettings(Budget(**budget), waits=waits)
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


def evaluations(journal: Path) -> int:
    return len(read_evaluations(journal))


def is_watched(journal: Path) -> bool:
    monitor = read_owner(journal, "monitor")
    return monitor is not None and monitor.is_alive


def is_running(pid: int) -> bool:
    """Return True if the process is there, and is no zombie that the test's own process has to reap."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
