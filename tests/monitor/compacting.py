"""What the tests of log compaction share: toy runs whose log is to be compacted, and a framework that child processes find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.clock import FakeClock
from tranlogs.cli.reading.find_journals import find_journals
from tranlogs.retention.compaction_policy import Compaction
from tranlogs.retention.pruning_plan import Budget
from tranlogs_monitor.daemon import Daemon, find_watched_journals
from tranlogs_monitor.settings import DaemonSettings

ROOT = Path(__file__).parents[2]
ALWAYS = Compaction(after_bytes=1)


def install_toy(folder: Path) -> str:
    """A distribution whose only content is the entry point; gives the PYTHONPATH with which children find it."""
    about = folder / "toyframework-1.0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toyframework\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[tranlogs.frameworks]\ntoy = tests.monitor.toy_offline:OfflineRun\n")
    return ":".join(map(str, (folder, ROOT, ROOT / "integrations", ROOT / "monitor")))


def daemon(root: Path, compaction: Compaction | None = ALWAYS, clock: FakeClock | None = None, **budget: Any) -> Daemon:
    settings = DaemonSettings(Budget(**budget), compaction=compaction)
    return Daemon([root], settings, find=lambda root: find_watched_journals(root, find_journals), clock=clock)


def compacted(root: Path, compaction: Compaction = ALWAYS, **budget: Any) -> None:
    """One look by a daemon, until it has made what is worth it."""
    watching = daemon(root, compaction, **budget)
    try:
        assert watching.evaluate() == 0
        watching.finish()
    finally:
        watching.close()
