"""Trainer, monitor and its child die by SIGKILL anywhere while checkpoints are made from the log: nothing is lost."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.crash.toy_trainers import UNTIL, Trainers
from tests.monitor.monitors import Monitors
from tests.monitor.shadows import checkpoints
from tests.monitor.test_kills import assert_nothing_is_lost_or_leaked
from tests.support import campaign
from tranlogs.base.config import MIB

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("small_segments")]

NEVER = 10**9  # steps between the trainer's own checkpoints
POINTS = (
    "derived.publish",
    "derived.renamed",
    "catalog.before_commit",
    "catalog.after_commit",
    "log.retire",
    "checkpoint.delete",
)
SECONDS_MAX = 60.0  # until something that is to come has come


def wait_for_checkpoint(run: Path, step: int) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while checkpoints(run / "rank0")[-1] < step:
        assert time.monotonic() < deadline, f"no checkpoint of step {step} came"
        signal.sigtimedwait([], 0.02)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("point", POINTS)
def test_a_monitor_that_dies_at_a_fault_point_does_no_harm(
    trainers: Trainers, monitors: Monitors, memory_path: Path, point: str
) -> None:
    run = memory_path / "run"
    said = trainers.run(run, keep=9, every=NEVER).committed
    for nth in (1, 2, 3):
        monitors.start(run, 3 * MIB, failpoints=f"{point}=kill@{nth}", compacts=True)
        signal.sigtimedwait([], 1.0)
        monitors.kill()
    monitors.start(run, 3 * MIB, compacts=True)  # takes up what they left half done
    wait_for_checkpoint(run, UNTIL)
    monitors.kill()
    assert_nothing_is_lost_or_leaked(run, said)


def test_all_are_killed_at_random_moments(trainers: Trainers, monitors: Monitors, memory_path: Path) -> None:
    """The trainer takes checkpoints of its own now and then, or never; the monitor goes on over several of its lives."""
    kills = campaign.Kills(30)
    chance = kills.chance
    for trial in kills.trials():
        run, said, every = memory_path / f"run{trial}", 0, chance.choice([NEVER, 9])
        while said < UNTIL:
            point = chance.choice(["", "", f"{chance.choice(POINTS)}=kill@{chance.randrange(1, 4)}"])
            monitors.start(run.parent, chance.choice([1, 3, 6]) * MIB, failpoints=point, compacts=True)
            for _ in range(chance.randrange(1, 5)):
                moment = (chance.choice([1, 3, 8]), chance.random() * 0.02) if chance.random() < 0.8 else None
                outcome = trainers.run(
                    run,
                    kill_after=moment,
                    keep=9,
                    every=every,
                    settles=chance.random() < 0.5,
                    durability=chance.choice(["process", "machine"]),
                )
                kills.note(outcome.status)
                assert outcome.recovered is None or outcome.recovered >= said
                said = max(said, outcome.committed)
                signal.sigtimedwait([], chance.random() * 0.6)  # its child takes about as long
            kills.note(monitors.kill())
        assert_nothing_is_lost_or_leaked(run, said)
