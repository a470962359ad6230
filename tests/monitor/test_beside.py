"""A monitor that a trainer starts: settings and processes; none of them touches training."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.launcher import ROOT
from tests.support.toy import ToyTrainer
from tests.support.waiting import wait_until
from tranlogs import Monitor
from tranlogs.base.errors import UsageError
from tranlogs.journal import monitor_launch, read_owner
from tranlogs.journal.monitor_launch import parse_monitor, start_monitor
from tranlogs.retention.value_decay import read_evaluations
from tranlogs_monitor.daemon import lock_journal

Toy = Callable[..., ToyTrainer]


@pytest.fixture(autouse=True)
def _children_are_of_this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, (ROOT, ROOT / "integrations", ROOT / "monitor"))))


@pytest.fixture
def run(toy: Toy, tmp_path: Path) -> ToyTrainer:
    trainer = toy(tmp_path / "run")
    trainer.recover()
    trainer.train(5)
    return trainer


def evaluations(journal: Path) -> int:
    return len(read_evaluations(journal))


def is_watched(journal: Path) -> bool:
    monitor = read_owner(journal, "monitor")
    return monitor is not None and monitor.is_alive


def test_settings_as_users_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_monitor(None) is None
    assert parse_monitor("process", "20GiB") == Monitor("20GiB")
    assert Monitor(budget="20GiB").budget_bytes == 20 << 30
    assert parse_monitor(Monitor(interval="1min")) == Monitor(None, None, "1min")
    shared = parse_monitor("process", "3GiB", budget_sharers=3)  # ranks on a machine share the budget of the run
    assert shared is not None
    assert shared.budget_bytes == 1 << 30
    assert parse_monitor(Monitor("3GiB"), budget_sharers=3) == Monitor("3GiB")
    refused: list[tuple[Any, Any, str]] = [
        (None, "1GiB", "needs a monitor"),
        ("thread", None, 'must be "process"'),
        ("process", "much", "give a size"),
        ("process", 0, "at least 1 byte"),
        (Monitor(), "1GiB", "given twice"),
    ]
    for monitor, budget, why in refused:
        with pytest.raises(UsageError, match=why):
            parse_monitor(monitor, budget)
    monkeypatch.setattr(monitor_launch, "entry_points", lambda **_: [])
    with pytest.raises(UsageError, match=r"pip install 'tranlogs\[monitor\]'"):
        parse_monitor("process")


def test_another_monitor_is_left_alone_and_one_that_fails_is_a_warning(
    run: ToyTrainer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a bug")

    held = lock_journal(run.journal.paths.folder)
    start_monitor(Monitor(), run.journal.paths)
    held.release()
    assert caplog.text.count("monitors this journal already") == 1
    assert not (run.journal.paths.folder / "monitor.log").exists()
    monkeypatch.setattr("tranlogs_monitor.detached.subprocess.run", fail)
    start_monitor(Monitor(), run.journal.paths)
    assert "the monitor could not be started (ZeroDivisionError: a bug)" in caplog.text
    run.train(9)


def test_a_process_prunes_and_ends_when_the_run_is_closed(run: ToyTrainer) -> None:
    paths = run.journal.paths
    start_monitor(Monitor("1GiB", interval="0.05s"), paths)
    wait_until(lambda: evaluations(paths.folder), "an evaluation")
    monitor = read_owner(paths.folder, "monitor")
    assert monitor is not None
    assert monitor.pid != os.getpid()
    run.journal.close()
    wait_until(lambda: not is_watched(paths.folder), "its end")
    wait_until(lambda: not is_running(monitor.pid), "its end")
    assert ": watching" in (paths.folder / "monitor.log").read_text()


def is_running(pid: int) -> bool:
    """Whether the process is there, and is no zombie that the test's own process has to reap."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
