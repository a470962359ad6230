"""One journal that cannot be watched holds up no other, and takes nobody down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.shipping.ships import trained
from tests.support.clock import FakeClock
from tranlogs.base.errors import UsageError
from tranlogs.cli.reading.find_journals import find_journals
from tranlogs.journal import JournalPaths
from tranlogs.journal.owner_lock import OwnerLock
from tranlogs_monitor.daemon import Daemon, find_watched_journals
from tranlogs_monitor.settings import DaemonSettings

Find = Callable[[Path], list[JournalPaths]]


def daemon(root: Path, seen: list[str], find: Find = lambda root: find_watched_journals(root, find_journals)) -> Daemon:
    return Daemon(
        [root],
        DaemonSettings(),
        find=find,
        on_evaluation=lambda what, paths: seen.append(paths.folder.parent.name),
        clock=FakeClock(2e9),
    )


def evaluate(watching: Daemon) -> None:
    """Later, when all are due."""
    watching._clock.advance(1e6)  # type: ignore[attr-defined]
    assert watching.evaluate() == 0


def test_a_run_with_a_monitor_of_its_own_is_left_to_it(memory_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a", "b", "c"):
        trained(memory_path / name, 2)
    lock, seen = OwnerLock(memory_path / "b/rank0", "monitor"), list[str]()
    watching = daemon(memory_path, seen)
    evaluate(watching)
    evaluate(watching)
    assert sorted(seen) == ["a", "a", "c", "c"]
    said = [one.message for one in caplog.records if "cannot watch: " in one.message]
    assert len(said) == 1, "it is said once"
    assert "b/rank0: cannot watch" in said[0]
    lock.release()
    evaluate(watching)
    assert seen[4:].count("b") == 1
    watching.close()


def test_a_run_that_was_named_and_has_a_monitor_is_refused(memory_path: Path) -> None:
    trained(memory_path / "a", 2)
    lock = OwnerLock(memory_path / "a/rank0", "monitor")
    for root in (memory_path / "a", memory_path / "a/rank0"):
        watching = daemon(root, [])
        with pytest.raises(UsageError, match="monitors it"):
            watching.evaluate()
        watching.close()
    lock.release()


def test_a_folder_that_cannot_be_listed_for_a_moment_keeps_its_journals(
    memory_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained(memory_path / "a", 2)
    away, seen = [False], list[str]()

    def find(root: Path) -> list[JournalPaths]:
        if away[0]:
            raise PermissionError("not now")
        return find_watched_journals(root, find_journals)

    watching = daemon(memory_path, seen, find)
    evaluate(watching)
    away[0] = True
    evaluate(watching)
    assert seen == ["a", "a"]
    assert "cannot be read now: not now" in caplog.text
    watching.close()


def test_nothing_to_watch_yet_is_said_once(memory_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []
    watching = daemon(memory_path / "runs", seen)
    evaluate(watching)
    evaluate(watching)
    assert caplog.text.count("no run found yet") == 1
    trained(memory_path / "runs/a", 2)
    evaluate(watching)
    assert seen == ["a"]
    watching.close()
