"""Trainer and monitor die by SIGKILL in turn, anywhere: no newest step is lost, no file is leaked, the budget is kept."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.crash.test_kill_core import assert_nothing_is_lost
from tests.crash.toy_trainers import SIZES, UNTIL, Trainers
from tests.monitor.monitors import Monitors, watching_daemon
from tests.support import campaign
from tests.support.toy import open_toy
from tranlogs.base.config import MIB
from tranlogs.base.errors import RunInUse
from tranlogs.catalog import Catalog
from tranlogs.journal import owner_lock

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
    for _ in range(3):  # each takes up what the one before left half done
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


@pytest.mark.parametrize("goes_on", [True, False], ids=["it goes on", "it is killed"])
def test_a_monitor_that_is_stopped_inside_a_change_is_named_to_a_trainer_that_starts(
    trainers: Trainers, monitors: Monitors, memory_path: Path, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    run = memory_path / "run"
    said = trainers.run(run, keep=9).committed
    monkeypatch.setattr(owner_lock, "_BRIEF_SECONDS", 0.1)
    monitors.start(run, BUDGET, failpoints="catalog.before_commit=kill@1", stops=True)
    pid = monitors.wait_stopped()
    with pytest.raises(RunInUse, match=str(pid)):
        open_toy(run, sizes=SIZES)
    if goes_on:
        monitors.go_on()
        _wait_for_end_or_peace(run)
    monitors.kill()
    assert_nothing_is_lost_or_leaked(run, said)


def test_both_are_killed_at_random_moments(trainers: Trainers, monitors: Monitors, memory_path: Path) -> None:
    """The trainer again and again, and the monitor as often, at any moment or at a fault point."""
    kills = campaign.Kills(40)
    chance = kills.chance
    for trial in kills.trials():
        run, said = memory_path / f"run{trial}", 0
        for _ in range(8):
            point = chance.choice(["", f"{chance.choice(IN_MONITOR)}=kill@{chance.randrange(1, 6)}"])
            monitors.start(memory_path, chance.choice([1, 3, 6]) * MIB, failpoints=point)
            lines = chance.choice([0, 1, 3, 8, 20])
            moment = (lines, chance.random() * 0.02) if chance.random() < 0.8 else None
            outcome = trainers.run(
                run,
                kill_after=moment,
                durability=chance.choice(["process", "machine"]),
                keep=9,
                writer=chance.choice(["direct", "thread"]),
                settles=chance.random() < 0.5,
            )
            assert outcome.recovered is None or outcome.recovered >= said
            said = max(said, outcome.committed)
            if chance.random() < 0.5:  # else the next one meets what this one leaves, with nobody else there
                signal.sigtimedwait([], chance.random() * 0.05)
            kills.note(outcome.status, monitors.kill())
            if said == UNTIL:
                break
        assert_nothing_is_lost_or_leaked(run, said)
