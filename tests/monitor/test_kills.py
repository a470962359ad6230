"""Trainer and monitor die by SIGKILL in turn, anywhere: no newest step is lost, no file is leaked, the budget is kept."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.crash.test_kill_core import assert_nothing_is_lost
from tests.crash.toy_trainers import UNTIL, Trainers
from tests.monitor.monitors import Monitors, watching_daemon
from tests.support import campaign
from tranlogs.base.config import MIB
from tranlogs.catalog import Catalog

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("small_segments")]

BUDGET = 5 * MIB  # segments have one; without a monitor a run takes nine
IN_MONITOR = ("log.retire", "log.unlink", "checkpoint.delete", "catalog.before_commit", "catalog.after_commit")


def evaluate(run: Path) -> None:
    """A last look by a monitor of this process, once nobody else is there."""
    daemon = watching_daemon(run, nbytes=BUDGET)
    assert daemon.evaluate() == 0
    daemon.close()


def assert_nothing_is_lost_or_leaked(run: Path, said: int) -> None:
    assert_nothing_is_lost(run, said, keep=9, between=lambda: evaluate(run))
    catalog = Catalog.open(run / "rank0")
    listed = {row.file for row in catalog.segments()} | {row.name for row in catalog.checkpoints()}
    catalog.close()
    assert files_of(run) == listed


def files_of(run: Path) -> set[str]:
    journal = run / "rank0"
    return {path.name for path in (journal / "log").glob("*.seg")} | {path.name for path in (journal / "checkpoints").iterdir()}


def test_a_monitor_keeps_a_run_within_its_budget(trainers: Trainers, monitors: Monitors, memory_path: Path) -> None:
    run = memory_path / "run"
    monitors.start(run.parent, BUDGET)
    assert trainers.run(run, keep=9).committed == UNTIL
    assert monitors.kill() == -signal.SIGKILL
    evaluate(run)
    assert sum(path.stat().st_size for path in run.rglob("*") if path.is_file() and path.suffix != ".lmdb") <= BUDGET
    assert_nothing_is_lost_or_leaked(run, UNTIL)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("point", "nth"), campaign.each_once(IN_MONITOR, [1, 2, 3]))
def test_a_monitor_that_dies_at_a_fault_point_does_no_harm(
    trainers: Trainers, monitors: Monitors, memory_path: Path, point: str, nth: int
) -> None:
    run = memory_path / "run"
    said = trainers.run(run, keep=9).committed
    assert sum(path.stat().st_size for path in (run / "rank0/log").glob("*.seg")) > BUDGET, "there is something to prune"
    for _ in range(campaign.few(3)):  # each takes up what the one before left half done
        monitors.start(run, BUDGET, failpoints=f"{point}=kill@{nth}")
        _wait_for_end_or_peace(run)
        monitors.kill()
    assert_nothing_is_lost_or_leaked(run, said)


def _wait_for_end_or_peace(run: Path) -> None:
    """Until the monitor has died, or has nothing left to do."""
    before: tuple[object, ...] = ()
    for _ in range(40):
        os.sched_yield()
        signal.sigtimedwait([], 0.02)
        now = tuple(sorted(files_of(run)))
        if before == now and _ > 10:
            return
        before = now
